"""Phase 8: the model reads and writes the pages itself. Every step is one packed forward pass."""
