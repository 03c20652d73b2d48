"""One module per peer, run by the Python of that peer's environment; of this repository they import each other only."""
