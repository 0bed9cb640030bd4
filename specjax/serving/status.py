"""What can be asked about the server and its model, besides texts."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specjax.runtime.prompts import check_text
from specjax.serving.answers import spelled
from specjax.serving.errors import ApiError, refused
from specjax.serving.forms import DetokenizeForm, TokenizeForm
from specjax.serving.reading_bodies import read_form
from specjax.serving.service import Service


class Status:
    """Answers questions about the server; each method is the handler of a path."""

    def __init__(self, service: Service) -> None:
        """
        Args:
            service: what is asked about.
        """
        self._service, self._created = service, int(time.time())

    async def health(self, request: Request) -> Response:
        """GET /health: whether the server works."""
        if self._service.worker.failed:
            raise ApiError(503, "the engine has failed, and no other one could be made; the server ends")
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics: figures for Prometheus."""
        return Response(self._service.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self, request: Request) -> Response:
        """GET /v1/models: the one model."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        self._service.check_model(request.path_params["name"])
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        service, model = self._service, self._service.model
        return {
            "id": service.settings.name,
            "object": "model",
            "created": self._created,
            "owned_by": "specjax",
            "architecture": model.config.architecture,
            "context_length": service.settings.slots,
            "vocabulary": model.target.vocab_size,
            "chat_template": service.tokenizer.vocabulary.chat_template is not None,
            "drafters": list(model.drafter_names),
            "most_drafts": service.most_drafts,
        }

    async def props(self, request: Request) -> Response:
        """GET /props: what requests get if they say nothing."""
        settings = self._service.settings
        names = ("temperature", "top_k", "top_p", "min_p", "draft_by", "accept")
        defaults = {name: getattr(settings.defaults, name) for name in names}
        draft = settings.defaults.draft_config(self._service.most_drafts > 0, self._service.most_drafts)
        defaults["draft"] = "auto" if draft.auto else draft.n_max
        return JSONResponse({"defaults": defaults, "seats": self._service.worker.engine.seats, "slots": settings.slots})

    async def seats(self, request: Request) -> Response:
        """GET /slots: who sits where."""
        seats = []
        for number, job in enumerate(self._service.worker.engine.jobs()):
            state: dict[str, Any] = {"id": number, "is_processing": job is not None}
            if job is not None:
                state |= {
                    "prompt_tokens": len(job.request.prompt),
                    "prompt_tokens_fed": job.held,
                    "prompt_tokens_reused": job.reused,
                    "generated_tokens": len(job.tokens),
                    "max_tokens": job.limit,
                    "tokens_per_round": job.stats.tokens_per_round,
                }
            seats.append(state)
        return JSONResponse(seats)

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: the ids of a text."""
        form = await read_form(request, TokenizeForm, self._service.settings.limits)
        check_text(form.content)
        tokenizer = self._service.tokenizer
        leading = list(tokenizer.vocabulary.leading)
        ids = await asyncio.to_thread(tokenizer.encode, form.content, form.parse_special)
        if form.parse_special:
            ids = ids[len(leading) :]
        ids = leading + ids if form.add_special else ids
        if form.with_pieces:
            return JSONResponse({"tokens": [{"id": each, "piece": spelled(tokenizer, each)} for each in ids]})
        return JSONResponse({"tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize: the text of ids."""
        form = await read_form(request, DetokenizeForm, self._service.settings.limits)
        tokenizer = self._service.tokenizer
        if wrong := [each for each in form.tokens if each >= tokenizer.vocab_size]:
            raise refused(f"tokens: {wrong[0]} is outside the vocabulary of {tokenizer.vocab_size}", param="tokens")
        return JSONResponse({"content": tokenizer.decode(form.tokens)})
