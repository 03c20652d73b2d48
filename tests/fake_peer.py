"""A peer's driver without a peer: it speaks the protocol, and does what the name of its model folder says."""

import os
import sys
import time

from shared.bench.peers.drivers.loop import Options, Transcript, main


class FakePeer:
    packages = ("numpy",)

    def __init__(self, options: Options) -> None:
        self.settings = {"max_batch_size": 3}
        self.behaviour = os.path.basename(options.model)
        self.implementation = {"dtype": options.dtype, "threads": os.environ["OMP_NUM_THREADS"]}
        self.num_forgotten = 0
        print("chatter that is no message")
        if self.behaviour == "refuses":
            raise RuntimeError("this model is not for me\nand more")

    def forget(self) -> None:
        self.num_forgotten += 1

    def serve(self, transcript: Transcript) -> None:
        """Each job's tokens are its prompt's last one, plus 1, plus 2, ..."""
        if self.behaviour == "dies":
            print("out of luck", file=sys.stderr, flush=True)
            os._exit(3)
        for step in range(max(job.max_tokens for job in transcript.jobs)):
            time.sleep(0.001)
            for index, job in enumerate(transcript.jobs):
                if step < job.max_tokens:
                    transcript.note(index, [job.prompt_token_ids[-1] + step + 1])
        if self.behaviour == "remembers":
            transcript.token_ids[0] = [self.num_forgotten]


if __name__ == "__main__":
    main(FakePeer)
