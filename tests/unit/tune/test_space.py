"""The space: its size by hand, what is left out and why, and how a large one is thinned."""

from powerband.records.config import EngineConfig, Knob
from powerband.tune.space import Space


def test_all_combinations_without_numerics(knobs: tuple[Knob, ...], naive: EngineConfig) -> None:
    kept, refused = Space(knobs=knobs).configs(naive)
    assert len(kept) == 6 * 3 * 3
    assert refused == []
    assert len({config.key for config in kept}) == len(kept)
    with_numerics, _ = Space(knobs=knobs, numerics=True).configs(naive)
    assert len(with_numerics) == 6 * 3 * 3 * 2


def test_fixed_knobs_are_not_turned(knobs: tuple[Knob, ...], naive: EngineConfig) -> None:
    kept, _ = Space(knobs=knobs, fixed={"slots": 4}).configs(naive.replace(slots=4))
    assert {config.knobs["slots"] for config in kept} == {4}
    assert len(kept) == 3 * 3


def test_a_baseline_off_the_grid_is_kept(knobs: tuple[Knob, ...], naive: EngineConfig) -> None:
    kept, _ = Space(knobs=knobs).configs(naive.replace(slots=3))
    assert 3 in {config.knobs["slots"] for config in kept}
    assert len(kept) == 7 * 3 * 3


def test_dependent_knobs_are_completed_and_equal_configs_count_once(
    knobs: tuple[Knob, ...], naive: EngineConfig
) -> None:
    def complete(config: EngineConfig) -> EngineConfig:
        return config.replace(context=int(config.knobs["slots"]) * 100, chunk=256)

    kept, _ = Space(knobs=knobs, complete=complete).configs(naive)
    assert all(config.knobs["context"] == int(config.knobs["slots"]) * 100 for config in kept)
    assert len(kept) == 6 * 3  # the three chunk sizes became one


def test_defaults_that_the_baseline_leaves_out_are_no_change(knobs: tuple[Knob, ...]) -> None:
    bare = EngineConfig(engine="imaginary", model="m", knobs={"slots": 1})
    kept, _ = Space(knobs=knobs).configs(bare)
    assert len(kept) == 6 * 3 * 3
    assert bare.key in {config.key for config in kept}
    assert {"slots": 8} in [config.changes_from(bare) for config in kept]


def test_refused_configs_carry_the_reason(knobs: tuple[Knob, ...], naive: EngineConfig) -> None:
    def refuses(config: EngineConfig) -> str | None:
        return "too many" if int(config.knobs["slots"]) == 32 else None

    kept, refused = Space(knobs=knobs, refuses=refuses).configs(naive)
    assert len(kept) == 5 * 9
    assert {pruned.reason for pruned in refused} == {"too many"}
    assert len(refused) == 9


def test_a_large_space_keeps_every_change_of_one_or_two_knobs() -> None:
    many = tuple(
        Knob(name=f"k{n}", kind="int", help="", naive=0, grid=tuple(range(5)), addresses=()) for n in range(8)
    )  # 390,625 combinations
    naive = EngineConfig(engine="imaginary", model="m", knobs={knob.name: 0 for knob in many})
    space = Space(knobs=many, most=2000)
    kept, _ = space.configs(naive)
    assert space.size(naive) == 5**8
    assert len(kept) <= 2000
    changed = [len(config.changes_from(naive)) for config in kept]
    assert changed.count(1) == 8 * 4
    assert changed.count(2) == 28 * 16
    assert max(changed) > 4
    assert [config.key for config in kept] == [config.key for config in space.configs(naive)[0]]
