"""What `--help` says beside the options: what is run, and how to read it."""

from shared.bench.workloads import SHAPES, num_of

EXAMPLES = """examples:
  python -m shared.bench offline --tiny --repeats 2          does it work? (a random tiny model, under a minute)
  python -m shared.bench offline --workloads A               the random workload, a quarter of its requests
  python -m shared.bench offline --phases 1 --baselines hf --workloads C    phase 1 against Hugging Face
  python -m shared.bench interference --tiny --repeats 2     what a long prompt does to running streams
  python -m shared.bench step-cost                           what the step loop itself costs
  python -m shared.bench step-parts                          where a decode step's milliseconds go
  python -m shared.bench capacity                            how many sequences the same memory serves at once
  python -m shared.bench tables --check                      are the READMEs' tables what was measured?

exit codes: 0 done, 1 a system failed or a table is not right, 2 something has to be mended first, 130 Ctrl-C"""

WORKLOADS = "workloads (output lengths are forced; all requests come at once):\n" + "\n".join(
    f"  {shape.key}  {shape.name}, {num_of(shape.num_requests, shape.num_requests)}: {shape.stresses}"
    for shape in SHAPES.values()
)

HOW_TO_READ = """how to read it: the host's speed drifts, by half and more within minutes. So systems run in turns,
round after round; "ratio" compares two runs of the same round, and the median of these ratios counts, with the
smallest and the largest beside it. "exact" counts the requests whose tokens are those of HF alone in fp32. TTFT
is high by design: everything comes at once, and it counts the wait. Run nothing else meanwhile."""

INTERFERENCE = """what happens: the streams (prompts of 16 to 32 tokens) decode. When each has 8 tokens, the long
prompt comes, between two steps. From then until its first token is the window. Then all run to their forced ends.

how to read it:
  gap p50 before     between two tokens of a stream, when all streams decode and the long prompt is not there yet
  gap p50, p99, max  of all streams' gaps that overlap the window. With whole-prompt prefill (phase 3) the window
                     is one step: each stream has one gap, and the three are the same
  long prompt's TTFT from its arrival to its first token: what it pays for letting the streams go on
  ... to phase03     over the same figure of the first phase, in the same round: the median of the ratios counts, since
                     the host's speed drifts; smallest and largest beside it
  exact              requests, the long one included, whose tokens are those of HF alone in fp32

Smaller chunks: shorter gaps, later first token. Each row ran with the chunk and the budget it shows, in tokens.
Run nothing else meanwhile."""

STEP_PARTS = """Clocks on the model's linear layers, its head, its attention and the sampler. What is left of the
forward pass is norms, RoPE, activations and dispatch; what is left of the step is planning, packing and handing out.
Median over the steps of a repeat, then over the repeats."""

STEP_COST = """A stand-in for the runner gives each sequence the same token at once, so a step is only planning,
bookkeeping and handing out. Median over the steps of a repeat, then over the repeats. Aim: under 0.3 ms at 8.
Phase 1 has no steps and is left out."""

CAPACITY = """what happens: jobs whose K/V is 20 times what the pool holds come at once, to the real block allocator. A
stand-in for the runner gives each a token per step. Everyone knows its budget (max_tokens), nobody how long it becomes.

workloads (prompts of 20 to 40 tokens):
  low variance  budget 32; outputs of 14 to 32 tokens, 23 on average
  heavy tail    budget 256; half of the outputs have 20 to 80 tokens, a few all 256; 60 on average (log-normal)
  two kinds     budget 256; four outputs in five have 8 to 32 tokens, one has 192 to 256; 61 on average

systems:
  contiguous slabs            prompt + max_tokens slots in one piece at admission, first fit
  paged, worst case promised  phase 6: blocks as it grows, but who is admitted must be able to reach its budget
  paged, on demand            phase 9: blocks as it grows, nothing promised, admitted if its prompt fits. Who cannot
                              grow takes the newest's blocks, and that one runs its tokens again (recompute)

how to read it:
  running at once  mean over the steps in which somebody waits, after as many as the budget; "at most" likewise
  gain             over contiguous slabs, on the same jobs
  waste            share of the allocated slots (in slabs or blocks) that holds no K/V
  % of pool        K/V, empty (held for somebody, and holding nothing) and free make 100, but for rounding
  run again        share of all tokens that ran a second time, after a preemption
  fit at full length  how many of the jobs fit beside each other if each is as long as it ever gets

Median over the draws, with the smallest and the largest. The same seed gives the same figures on every machine."""

TABLES = """A README asks for a table with a pair of lines, each at the beginning of its line:

  <!-- bench:offline workload=A columns=system,tok_s,ratio systems=hf,phase02 -->
  <!-- /bench -->

options: workload, dtype, model and file choose the result (the newest that fits), systems and columns what is
shown of it; all may be left out. Results measured before their systems' code changed are listed, which is no error."""
