"""`GET /v1/models`: there is one. Asking for another is a 404, never an answer by the wrong model."""

import time
from typing import Any

from fastapi import APIRouter

from shared.server.api_error import ApiError
from shared.server.route_docs import ERRORS
from shared.server.service import Service


def models_route(service: Service) -> APIRouter:
    router = APIRouter()
    created = int(time.time())

    def card() -> dict[str, Any]:
        return {"id": service.model_name, "object": "model", "created": created, "owned_by": "pageserve"}

    @router.head("/v1/models", include_in_schema=False)
    @router.get("/v1/models", summary="The served model", responses=ERRORS)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card()]}

    @router.head("/v1/models/{model:path}", include_in_schema=False)
    @router.get("/v1/models/{model:path}", summary="The served model, by its id", responses=ERRORS)
    async def model(model: str) -> dict[str, Any]:
        check_model(service, model)
        return card()

    return router


def check_model(service: Service, name: str | None) -> None:
    """Raises ApiError 404 for any other model than the one that is served; None is that one."""
    if name is not None and name != service.model_name:
        message = f"the model {name!r} does not exist here; this server has {service.model_name!r}"
        raise ApiError(404, message, param="model", code="model_not_found")
