"""Load from locust: chat and completions, streamed and not, read to the end and checked.

locust -f tests/outside/locustfile.py --headless --host http://127.0.0.1:8001 -u 4 -r 2 -t 30s
"""

import json
import random

from locust import FastHttpUser, between, task
from locust.contrib.fasthttp import ResponseContextManager

PROMPTS = ["Name three fruits.", "Why is the sky blue?", "Say hi.", "Count to five."]


class Client(FastHttpUser):
    wait_time = between(0.1, 0.5)

    @task
    def chat(self) -> None:
        messages = [{"role": "user", "content": random.choice(PROMPTS)}]
        with self.post("/v1/chat/completions", {"messages": messages, "max_tokens": 8}) as response:
            if not response.json()["choices"][0]["message"]["content"]:
                response.failure("an empty answer")

    @task
    def streamed_chat(self) -> None:
        body = {"messages": [{"role": "user", "content": random.choice(PROMPTS)}], "max_tokens": 8, "stream": True}
        with self.post("/v1/chat/completions", body) as response:
            events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
            if events[-1] != "[DONE]":
                response.failure(f"the stream ends with {events[-1]}")
            elif json.loads(events[-2])["choices"][0]["finish_reason"] not in ("stop", "length"):
                response.failure("no finish reason")

    @task
    def completion(self) -> None:
        with self.post("/v1/completions", {"prompt": random.choice(PROMPTS), "max_tokens": 8}) as response:
            if response.json()["usage"]["completion_tokens"] < 1:
                response.failure("no token")

    def post(self, path: str, body: dict[str, object]) -> ResponseContextManager:
        name = f"{path}{' streamed' if body.get('stream') else ''}"
        return self.client.post(path, json=body, catch_response=True, name=name)
