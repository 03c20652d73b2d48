"""The benchmark suite: seeded workloads, alternating rounds, published results, and the tables made from them."""
