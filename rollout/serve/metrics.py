"""`/metrics` in Prometheus' text format."""

from __future__ import annotations

from collections import Counter

from toolstep.rollout.serve.worker import Worker


class Metrics:
    """Counts requests, and writes them with the worker's gauges."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds = 0.0

    def count(self, endpoint: str, status: int, seconds: float) -> None:
        """A request is over; status 499: its client went away."""
        self._requests[endpoint, status] += 1
        self._seconds += seconds

    def text(self) -> str:
        w, g = self._worker, self._worker.gauges
        lines = ["# HELP toolstep_requests_total Requests that are over.", "# TYPE toolstep_requests_total counter"]
        lines += [
            f'toolstep_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}'
            for (endpoint, status), count in sorted(self._requests.items())
        ]
        for name, kind, help_, value in (
            ("request_seconds_total", "counter", "Time that requests took in all.", self._seconds),
            ("queue_seconds_total", "counter", "Time that completions waited for a place.", g.queue_seconds),
            ("first_token_seconds_total", "counter", "Time to the first token, streamed ones.", g.first_token_seconds),
            ("first_tokens_total", "counter", "Streamed completions that had a first token.", g.first_tokens),
            ("running", "gauge", "Completions that are sampled now.", w.running),
            ("waiting", "gauge", "Completions that wait for a place.", w.waiting),
            ("prompt_tokens_total", "counter", "Tokens of prompts.", g.prompt_tokens),
            ("sampled_tokens_total", "counter", "Tokens sampled.", g.sampled_tokens),
            ("fed_tokens_total", "counter", "Tokens that went through the model.", g.fed_tokens),
            ("shared_tokens_total", "counter", "Tokens of prompts that were computed already.", g.shared_tokens),
            ("forwards_total", "counter", "Calls of the model.", g.forwards),
            ("preemptions_total", "counter", "Completions that gave up their memory for others.", g.preemptions),
            ("kv_tokens", "gauge", "Tokens whose keys and values are held.", g.kv_tokens),
            ("kept_contexts", "gauge", "Finished contexts that are kept for a next turn.", g.kept_contexts),
            ("kept_tokens", "gauge", "Tokens of those.", g.kept_tokens),
        ):
            lines += [f"# HELP toolstep_{name} {help_}", f"# TYPE toolstep_{name} {kind}", f"toolstep_{name} {value}"]
        return "\n".join(lines) + "\n"
