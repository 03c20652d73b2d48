"""Other engines under the same workloads, each in an environment and a process of its own. Torch-free."""
