"""`/health`, `/metrics`, `/metrics/summary`, and `/`: for a browser the live page, for others where to go."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from shared.server.page_access import page_is_on
from shared.server.page_routes import front_page
from shared.server.route_docs import ERRORS, METRICS_TEXT
from shared.server.service import Service
from shared.server.wire import ApiResponse


def status_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.get("/health", summary="200 if the next request would be served", responses=ERRORS)
    async def health() -> Response:
        service.health.check()
        return ApiResponse({"status": "ok", "model": service.model_name})

    @router.head("/metrics", include_in_schema=False)
    @router.get("/metrics", summary="For Prometheus", response_class=Response, responses=ERRORS | METRICS_TEXT)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @router.head("/metrics/summary", include_in_schema=False)
    @router.get("/metrics/summary", summary="Percentiles and totals", responses=ERRORS)
    async def summary() -> dict[str, Any]:
        return service.metrics.summary()

    @router.head("/", include_in_schema=False)
    @router.get("/", summary="Where to go; the live page, if `Accept` has text/html", responses=ERRORS)
    async def root(http: Request) -> Response:
        if "text/html" in http.headers.get("accept", "") and page_is_on(service.settings, http.scope):
            return front_page()
        return ApiResponse({"name": "PageServe", "model": service.model_name, "docs": "/docs"})

    return router
