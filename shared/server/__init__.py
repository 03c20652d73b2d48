"""The HTTP server that every phase serves through: `create_app(engine, tokenizer, model_name, **limits)`."""

from shared.server.app import create_app

__all__ = ["create_app"]
