"""The one thread that steps an engine while there is work, and is woken by events, not by polling.

It starts with the first request that needs it and ends when nothing is left, so that an engine can
be stepped by hand before and after; a server keeps it (`keep_running`). Torch-free.
"""

import atexit
import logging
import threading
import time
from typing import Protocol

from shared.pace import Pace

log = logging.getLogger(__name__)


class Steppable(Protocol):
    def step(self) -> object: ...
    def has_unfinished(self) -> bool: ...


class EngineThread:
    """Runs `engine.step()` on a thread of its own."""

    def __init__(self, engine: Steppable) -> None:
        self._engine = engine
        self._changed = threading.Condition()  # guards what follows
        self._thread: threading.Thread | None = None
        self._keeps_running = False
        self._is_stopping = False
        self._step_began: float | None = None  # time.perf_counter()
        self.pace = Pace()  # to be read; `set_pace` and `step_once` change it

    def wake(self) -> None:
        """There is work: start the thread, or wake it. Not after `stop`."""
        with self._changed:
            if self._thread is None and not self._is_stopping:
                # A daemon, stopped by atexit: an abandoned stream must not keep the interpreter alive.
                self._thread = threading.Thread(target=self._run, name="pageserve-engine", daemon=True)
                atexit.register(self.stop)
                self._thread.start()
            self._changed.notify_all()

    def wake_if_stepping(self) -> bool:
        """True if the thread is there to do what was handed over; it has been woken for it."""
        with self._changed:
            self._changed.notify_all()
            return self._thread is not None and self._thread is not threading.current_thread()

    def keep_running(self) -> None:
        """Stay, also without work, until `stop`."""
        with self._changed:
            self._keeps_running = True
        self.wake()

    def set_pace(self, *, is_paused: bool = False, seconds_per_step: float = 0.0) -> None:
        """Stop before the next step, or take so long for each; without arguments, as fast as it goes."""
        with self._changed:
            self.pace.set(is_paused=is_paused, seconds_per_step=seconds_per_step)
            self._changed.notify_all()

    def step_once(self) -> None:
        """Run one step of a paused engine; where there is no work there is no step."""
        with self._changed:
            if self._engine.has_unfinished():
                self.pace.allow_one()
                self._changed.notify_all()

    def stop(self) -> None:
        """End the thread after the step it is in, for good. What is left is for whoever closes the engine."""
        with self._changed:
            self._keeps_running = False
            self._is_stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def settle(self) -> None:
        """Wait for a thread that is about to end, so that what comes next can be stepped by hand."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        if not self._keeps_running and not self._engine.has_unfinished():
            thread.join()

    def check_may_step(self) -> None:
        """Raises RuntimeError if the caller would step beside the thread."""
        self.settle()
        if self._thread not in (None, threading.current_thread()):
            raise RuntimeError(
                "the engine's own thread is stepping it for generate(), stream() or a server; "
                "step by hand when those are done"
            )

    def step_seconds(self) -> float:
        """How long the step that runs now has been at it; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else time.perf_counter() - began

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._step_began = time.perf_counter()
                try:
                    self._engine.step()
                except BaseException:  # SystemExit, too: it would end the thread, and who waits has no other
                    log.exception("a step failed; every request that had begun was told")
                finally:
                    self._step_began = None
        finally:
            self._forget(threading.current_thread())

    def _forget(self, thread: threading.Thread) -> None:
        """Whatever ended it: the next request starts another."""
        with self._changed:
            if self._thread is thread:
                self._thread = None
                atexit.unregister(self.stop)

    def _wait_for_work(self) -> bool:
        """False when the thread should end; decided under the lock, so that no request slips through."""
        with self._changed:
            while not self._is_stopping:
                if self._engine.has_unfinished():
                    if (delay_s := self.pace.delay_s()) == 0:
                        self.pace.note_step()
                        return True
                    self._changed.wait(delay_s)
                elif self._keeps_running:
                    self._changed.wait()
                else:
                    break
            self._forget(threading.current_thread())
            return False
