"""Phase 12: nothing is computed twice, and guesses never change the answer. The final engine."""
