"""When each pass of a schedule runs, for stages that take known times."""

from __future__ import annotations

from distkeras_grid.model_parallel.schedule import Pass, TimedPass


def needed(step, stages):
    """The passes whose results a pass needs."""

    def at(stage, backward):
        return Pass(stage=stage, micro_batch=step.micro_batch, backward=backward)

    if not step.backward:
        return [at(step.stage - 1, False)] if step.stage else []
    own = [at(step.stage, False)]
    return own if step.stage == stages - 1 else [*own, at(step.stage + 1, True)]


def timetable(schedule, forward, backward):
    """The passes with their times; stages that wait for each other raise."""
    stages = len(schedule)
    ended, free, places, passes = {}, [0.0] * stages, [0] * stages, []
    while len(passes) < sum(map(len, schedule)):
        before = len(passes)
        for stage, order in enumerate(schedule):
            while places[stage] < len(order):
                step = order[places[stage]]
                if not all(each in ended for each in needed(step, stages)):
                    break
                timed = TimedPass(
                    stage=stage,
                    micro_batch=step.micro_batch,
                    backward=step.backward,
                    started=max([free[stage], *(ended[each] for each in needed(step, stages))]),
                    seconds=(backward if step.backward else forward)[stage],
                )
                passes.append(timed)
                free[stage] = ended[step] = timed.ended
                places[stage] += 1
        assert len(passes) > before, "stages wait for each other"
    return passes
