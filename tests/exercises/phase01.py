"""Phase 1: the loop behind the lock, and the lock."""

import threading

from shared.sequence import Sequence
from tests.exercises.kit import expect, grades
from tests.fakes import make_state

READ_AFTER = "The new token is run in the NEXT turn: it has no K/V yet."


class Fake:
    """The parts around the loop, all of them fakes: what was run, what was noted, what was handed out."""

    def __init__(self, num_prompt: int, max_tokens: int) -> None:
        from types import SimpleNamespace

        import torch

        import phase01_sequential.engine as module
        from shared.step import SampledToken

        self.ran: list[list[int]] = []
        self.log: list[str] = []
        self.outputs: list[object] = []
        self.seq = make_state("r").sequences[0]
        self.seq.token_ids = list(range(10, 10 + num_prompt))
        self.seq.request = self.seq.request.__class__(list(self.seq.token_ids), self.seq.params)
        self.seq.max_num_tokens = num_prompt + max_tokens
        engine = object.__new__(module.SequentialEngine)
        engine.model = None
        numbers = iter(range(50, 99))

        def forward(_model: object, token_ids: list[int], _cache: object, _score: object = None) -> torch.Tensor:
            self.log.append("model")
            self.ran.append(list(token_ids))
            return torch.zeros(99)

        def choose(logits: torch.Tensor, _seqs: list[Sequence]) -> list[SampledToken]:
            expect(
                tuple(logits.shape),
                (1, 99),
                when="calling self.sampler.sample",
                because="It wants [B, V]: logits[None].",
            )
            return [SampledToken(next(numbers))]

        engine.sampler = SimpleNamespace(sample=choose)
        engine._note_run = lambda *_: self.log.append("note")
        engine.requests = SimpleNamespace(hand_out=self._hand_out)
        before = module.forward_sequence, module.new_cache
        module.forward_sequence, module.new_cache = forward, lambda: None
        try:
            engine._generate(self.seq, make_state("r"))
        finally:
            module.forward_sequence, module.new_cache = before

    def _hand_out(self, output: object) -> None:
        self.log.append("hand out")
        self.outputs.append(output)


@grades("1.1")
def the_whole_prompt_runs_first_and_then_one_token_a_turn() -> None:
    fake = Fake(num_prompt=4, max_tokens=3)
    expect(
        fake.ran,
        [[10, 11, 12, 13], [50], [51]],
        when="a prompt of 4 tokens, 3 to come; the model says 50, 51, 52",
        because="The tokens of each pass should be those that have no K/V yet. " + READ_AFTER,
    )


@grades("1.1")
def every_token_is_handed_out_and_the_last_one_ends_it() -> None:
    fake = Fake(num_prompt=4, max_tokens=3)
    told = [(output.token_ids, output.finish_reason) for output in fake.outputs]
    expect(
        told,
        [([50], None), ([51], None), ([52], "length")],
        when="a prompt of 4 tokens, 3 to come",
        because="accept_tokens(seq, [token]) makes the output; hand out each one, in its turn.",
    )


@grades("1.1")
def the_last_sampled_token_is_never_run() -> None:
    seq = Fake(num_prompt=4, max_tokens=3).seq
    expect(
        (seq.num_computed_tokens, len(seq.token_ids)),
        (6, 7),
        when="4 prompt tokens and 3 sampled ones: (num_computed_tokens, tokens)",
        because="Progress moves by item.num_tokens, what was run. " + READ_AFTER,
    )


@grades("1.1")
def each_run_is_noted_before_its_token_is_handed_out() -> None:
    expect(
        Fake(num_prompt=2, max_tokens=1).log,
        ["model", "note", "hand out"],
        when="one turn",
        because="self._note_run ends the request's wait in the metrics; a token before it would come from nowhere.",
    )


@grades("1.2")
def who_joined_first_goes_first() -> None:
    from phase01_sequential.turnstile import Turnstile

    turnstile, order = Turnstile(), []
    tickets = ["a", "b", "c"]
    for ticket in tickets:
        turnstile.join(ticket)

    def take(ticket: str) -> None:
        with turnstile.turn(ticket, lambda: False):
            order.append(ticket)

    run_threads([lambda t=ticket: take(t) for ticket in reversed(tickets)])  # type: ignore[misc]
    expect(
        order, tickets, when="a, b, c join; their threads start as c, b, a", because="The turn is the first ticket's."
    )


@grades("1.2")
def an_error_inside_gives_the_turn_back() -> None:
    from phase01_sequential.turnstile import Turnstile

    turnstile = Turnstile()
    turnstile.join("a")
    turnstile.join("b")
    try:
        with turnstile.turn("a", lambda: False):
            raise RuntimeError("the model failed")
    except RuntimeError:
        pass
    expect(list(turnstile._line), ["b"], when="a's body raises", because="Without a finally, b waits for ever.")


@grades("1.2")
def who_is_cancelled_stops_waiting_and_leaves_the_line() -> None:
    from phase01_sequential.turnstile import Turnstile

    turnstile = Turnstile()
    turnstile.join("a")
    turnstile.join("b")
    run_threads([lambda: enter(turnstile, "b")])
    expect(
        list(turnstile._line),
        ["a"],
        when="b, second in line, is cancelled",
        because="is_cancelled() ends the wait too.",
    )


@grades("1.2")
def others_can_join_while_somebody_has_the_turn() -> None:
    from phase01_sequential.turnstile import Turnstile

    turnstile = Turnstile()
    turnstile.join("a")
    with turnstile.turn("a", lambda: False):
        run_threads([lambda: turnstile.join("b")])
    expect(list(turnstile._line), ["b"], when="b joins while a runs", because="Let go of self._moved before the yield.")


def enter(turnstile: object, ticket: str) -> None:
    with turnstile.turn(ticket, lambda: True):  # type: ignore[attr-defined]
        pass


def run_threads(targets: list[object], seconds: float = 2.0) -> None:
    """Run them beside each other; one that does not come back is what a check is about."""
    threads = [threading.Thread(target=target, daemon=True) for target in targets]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    expect(
        sum(thread.is_alive() for thread in threads),
        0,
        when=f"threads still waiting after {seconds:.0f} s",
        because="Somebody waits for a turn that never comes, or holds self._moved while it should not.",
    )
