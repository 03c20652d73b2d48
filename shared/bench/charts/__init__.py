"""Charts of the published results, one question each. They read committed JSON and nothing else."""
