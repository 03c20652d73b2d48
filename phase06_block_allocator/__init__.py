"""Phase 6: K/V memory in fixed blocks. A sequence holds a table of blocks and grows one block at a time."""
