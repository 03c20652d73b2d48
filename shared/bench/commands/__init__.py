"""The commands of the benchmark suite, one module each, and the list of them.

A module has EXPLANATION (what `--help` says beside the options), `add_options(parser)` and
`run(args, argv) -> exit code`. It imports torch and matplotlib inside functions only: `--help` is to be quick.
"""

from collections.abc import Mapping

COMMANDS: Mapping[str, tuple[str, str]] = {  # name -> (module, what it answers)
    "offline": ("shared.bench.commands.offline", "throughput and latency of every phase"),
    "interference": ("shared.bench.commands.interference", "running streams while a long prompt arrives"),
    "step-cost": ("shared.bench.commands.step_cost", "milliseconds a step costs beside the model"),
    "watching": ("shared.bench.commands.watching", "microseconds that a step costs more while somebody watches"),
    "step-parts": ("shared.bench.commands.step_parts", "where the milliseconds of a decode step go"),
    "capacity": ("shared.bench.commands.capacity", "sequences at once on the same slots, no model"),
    "peers": ("shared.bench.commands.peers", "this project's engines beside other people's"),
    "who-waits": ("shared.bench.commands.who_waits", "four requests on one clock: when each begins and ends"),
    "preemption": ("shared.bench.commands.preemption", "a pool too small: promise the worst case, or give back"),
    "speculation": ("shared.bench.commands.speculation", "does guessing ahead pay, by workload and batch size"),
    "accuracy": ("shared.bench.commands.accuracy", "how close each dtype and forward pass comes to fp32"),
    "load": ("shared.bench.commands.load", "a server under load, from outside: latency, goodput, coordinated omission"),
    "serving": ("shared.bench.commands.serving", "every phase's real server at rising rates"),
    "moves": ("shared.bench.commands.moves", "what each move towards a fast engine buys"),
    "step-time": ("shared.bench.commands.step_time", "a decode step over context, batch and pool size"),
    "charts": ("shared.bench.commands.charts", "draw the published results, one question each"),
    "all": ("shared.bench.commands.small_set", "a complete small set in 20 minutes, then the charts"),
    "tables": ("shared.bench.commands.tables", "write the READMEs' tables from the published results"),
}
