"""Phase 4: a token budget per step. Long prompts are cut into chunks, so that no stream waits for one of them."""
