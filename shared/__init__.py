"""What does not change from phase to phase: records, the step loop, model loading, sampling, text, the command line."""
