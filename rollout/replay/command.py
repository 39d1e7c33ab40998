"""The command `toolstep replay`.  Light: what a replay needs is imported when it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolstep.rollout.exits import FAILED, INTERRUPTED, one_line_errors
from toolstep.rollout.options import AsJson, NumEnvs, Playback, Quiet


def replay(
    episodes: Annotated[Path, typer.Argument(help="episodes.jsonl of `toolstep eval`, or *.jsonl of `rollout`.")],
    config: Annotated[
        Path | None, typer.Option(help="Configuration of the run; default: the one that was written beside EPISODES.")
    ] = None,
    playback: Playback = None,
    num_envs: NumEnvs = 16,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Play recorded episodes again with the real tools, and name the first difference.

    The agent's turns come from the file; prompts, results, token ids, masks, rewards and ends are computed anew.

    Exit code 0: all equal; 1: something differs; 2: it can't be played; 130: interrupted.
    """
    with one_line_errors():
        from toolstep.rollout.console import print_json
        from toolstep.rollout.progress import follow
        from toolstep.rollout.replay.run import ReplayReport, open_file, replay_episodes
        from toolstep.rollout.replay.view import ReplayTally, print_report

        report, interrupted = ReplayReport(), False
        recorded, envs = open_file(episodes, config=config, playback=playback, num_envs=num_envs)
        try:
            with follow(f"replay of {episodes}", ReplayTally(len(recorded)), quiet=quiet) as add:
                replay_episodes(envs, recorded, report=report, on_episode=lambda _, difference: add(difference))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            envs.close()
        document = {**report.to_dict(), "file": str(episodes), "interrupted": interrupted}
        print_json(document) if as_json else print_report(episodes, report, interrupted=interrupted)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if not report.equal:
        raise typer.Exit(FAILED)
