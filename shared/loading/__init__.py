"""Behind `shared.model_loader`: finding, fetching, converting and checking models."""
