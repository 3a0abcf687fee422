"""A request in the engine: what of it is cached, given and still to come."""


class Sequence:
    """A request in the engine; ``prompt`` grows when a preempted sequence has to be computed again."""

    __slots__ = ("cached", "emitted", "finish_step", "index", "joined_step", "output", "prompt", "slot")

    def __init__(self, index: int, prompt: int, output: int) -> None:
        self.index = index
        self.prompt = prompt
        self.output = output
        self.cached = 0  # prompt tokens already in the cache
        self.emitted = 0  # tokens given before the present stretch of decoding
        self.joined_step = -1  # step that gave the first token of the present stretch; -1: not decoding
        self.finish_step = -1
        self.slot = -1
