"""Attention kernels that read pages where they are, and the C++ that computes everything else of a step on a CPU."""
