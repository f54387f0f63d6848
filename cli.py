"""The mimose-bench command line: parse, call, print, exit code.

Exit codes: 0 done; 1 a handled error, one sentence on stderr, or a check or cell that failed; 2
usage; 3 a batch fits under no plan, or a run ended out of memory or thrashing, which is recorded; 4
a reproduced value is outside its tolerance; 130 interrupted. MIMOSE_DEBUG=1 shows the traceback of
a handled error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from mimose.units import BYTES_HELP, SHARE_HELP, parse_budget

# Commands import what they call: torch and pandas take seconds, --help must not.

app = typer.Typer(
    name="mimose-bench",
    help="Compare planners that train PyTorch models under a memory budget.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RESULTS = Path("results")


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"mimose-bench {version('mimose-bench')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


Task = Annotated[str, typer.Option("--task", help="Task to train; 'list' names them.")]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--task-option", metavar="KEY=VALUE", help="An option of the task's own; repeatable."
    ),
]
Budget = Annotated[
    str,
    typer.Option(
        "--budget",
        metavar="BYTES",
        help="Bound on the bytes that the device's allocator reserves (parameters, gradients, "
        f"optimizer state, activations): {BYTES_HELP}, or {SHARE_HELP} (on cpu the machine's). "
        "'none' is the unlimited reference.",
    ),
]
PlannerName = Annotated[
    str,
    typer.Option("--planner", help="Planner; 'list' names them. Or package.module:Class."),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="auto (cuda where there is one, else cpu), cuda, cuda:N, cpu, or sim:NAME, a "
        "simulated GPU (sim:v100; 'mimose-bench list' names them).",
    ),
]
Scale = Annotated[
    str,
    typer.Option(
        "--scale",
        help="full (the paper's model), small (as deep and as long, narrower) or tiny (tests).",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Fixes weights, data order and dropout.")]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        help="auto (hub if it answers or is cached, else synthetic), hub, synthetic, or the path "
        "of a file (or folder) in the data set's own format.",
    ),
]
Vocab = Annotated[
    str | None,
    typer.Option(
        "--vocab",
        help="Tokenizer for --data PATH: vocab.txt, tokenizer.json or a folder with one; else the "
        "one beside the data.",
    ),
]
Weights = Annotated[
    str, typer.Option("--weights", help="random, pretrained or the path of a saved model.")
]
Attention = Annotated[
    str, typer.Option("--attention", help="eager (the paper's) or sdpa (fused kernels).")
]
Precision = Annotated[
    str, typer.Option("--precision", help="fp32, or bf16 or fp16 under autocast.")
]
PlanText = Annotated[
    str | None,
    typer.Option(
        "--plan",
        help="For planner fixed: 'keep 0-9 | recompute 10-11', or the path of a JSON file.",
    ),
]
Margin = Annotated[
    str | None,
    typer.Option(
        "--margin",
        metavar="BYTES",
        help="Room left for fragmentation between what a plan needs and the budget: 5 % by default "
        "for planners that plan once, learned from the run for planners mimose and auto.",
    ),
]
Every = Annotated[
    int | None, typer.Option("--every", help="For planner full: blocks in each region (1).")
]
Segments = Annotated[
    int | None,
    typer.Option("--segments", help="For planner sqrt-n: segments; the square root's by default."),
]
Heuristic = Annotated[
    str | None,
    typer.Option(
        "--heuristic",
        help="For planner dtr: what to evict first: h_DTR, h_DTR_eq (the prototype's, the "
        "default), h_DTR_local, lru, largest, msps or random.",
    ),
]
Sampling = Annotated[
    str | None,
    typer.Option(
        "--sampling",
        help="For planners dtr and delta: look at a sample of the tensors only: on or off (on).",
    ),
]
Trigger = Annotated[
    str | None,
    typer.Option(
        "--trigger",
        help="For planners dtr and delta: when to evict: threshold (before an operator that would "
        "go over the budget), after (once one has) or oom (once an allocation failed).",
    ),
]
Reserve = Annotated[
    str | None,
    typer.Option(
        "--dtr-reserve",
        "--reserve",
        metavar="BYTES",
        help="For planners dtr and delta: part of the budget left for fragmentation, in bytes or "
        "as a share of it (dtr 25%, delta 10%).",
    ),
]
Actions = Annotated[
    str | None,
    typer.Option(
        "--actions",
        help="For planner delta: recompute evicted tensors, swap them to the host, or both.",
    ),
]
Filter = Annotated[
    str | None,
    typer.Option(
        "--filter", help="For planner delta: how tensors are chosen: base, lru or greedy."
    ),
]
Prefetch = Annotated[
    str | None,
    typer.Option(
        "--prefetch",
        help="For planner delta: bring swapped tensors back ahead of their use: on or off (on).",
    ),
]
Offload = Annotated[
    str | None,
    typer.Option(
        "--offload",
        help="For planner auto: have some values in the host's memory, as far as copies are "
        "hidden: on or off (off).",
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit", metavar="SECONDS", help="For planner checkmate: how long it may solve (60)."
    ),
]
Gap = Annotated[
    float | None,
    typer.Option(
        "--gap",
        metavar="SHARE",
        help="For planner checkmate: how much worse than the best a plan may be (0.01 is 1 %).",
    ),
]
PlanSize = Annotated[
    str | None,
    typer.Option(
        "--plan-size",
        metavar="SIZE",
        help="For planners that plan once: the size planned for, written as in plan --lengths; the "
        "largest batch by default.",
    ),
]
Variant = Annotated[
    str | None,
    typer.Option(
        "--variant",
        help="For planner mimose: printed (Algorithm 1 as printed) or authors (as released).",
    ),
]
Sheltered = Annotated[
    int | None,
    typer.Option(
        "--sheltered",
        help="For planners mimose (10) and auto (until three lengths were seen): iterations that "
        "measure, 1 to 30.",
    ),
]
CacheStep = Annotated[
    int | None,
    typer.Option(
        "--cache-step",
        help="For planners mimose and auto: plans are made for sizes rounded up to this (5).",
    ),
]
PlannerOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--planner-option", metavar="KEY=VALUE", help="Any other option of the planner; repeatable."
    ),
]
FreshPlan = Annotated[
    bool,
    typer.Option(
        "--fresh-plan",
        help="Profile and solve anew, even if an earlier run in --out has solved the same.",
    ),
]
Flops = Annotated[
    str,
    typer.Option(
        "--flops",
        help="Count FLOPs after the run, for its MFU and HFU: on, off or auto (on for cuda and "
        "sim, off for cpu, whose peak is not known).",
    ),
]
Allocator = Annotated[
    str | None,
    typer.Option(
        "--allocator",
        help="Segments of the caching allocator's model on cpu and sim: native, or expandable as "
        "under PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. On cuda set that variable.",
        show_default="native",
    ),
]
ZeroGrad = Annotated[
    str,
    typer.Option(
        "--zero-grad",
        help="keep gradients allocated between steps, as the paper's PyTorch did, or free them.",
    ),
]
Foreach = Annotated[
    str,
    typer.Option(
        "--foreach",
        help="Whether the optimizer updates many parameters in one kernel, which takes memory for "
        "temporaries: on, off or auto (PyTorch's choice for the device; on for cuda and sim).",
    ),
]
Enforce = Annotated[
    bool,
    typer.Option(
        "--enforce/--no-enforce",
        help="Whether the device makes exceeding the budget fail, or the planner alone heeds it.",
    ),
]
LearningRate = Annotated[
    float | None, typer.Option("--lr", help="Learning rate; the task's own by default.")
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        help="adamw, sgd (as in the paper's released scripts) or momentum; the task's own.",
    ),
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", help="Samples in a batch; the task's own by default.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", help="Threads of torch's CPU operators; torch's choice.")
]
Out = Annotated[
    Path,
    typer.Option("--out", help="Folder in which each run makes a new folder of its own."),
]
Results = Annotated[
    Path, typer.Option("--results", help="Folder that holds runs, for runs given by name.")
]
RunsIn = Annotated[
    Path,
    typer.Option(
        "--results", "--out", help="Folder that holds runs, as run's --out, for runs given by name."
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON on stdout; all else goes to stderr.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


# -- what there is


@app.command("list")
def list_(json: AsJson = False) -> None:
    """List tasks, planners and devices."""
    from mimose.devices import DEVICES
    from mimose.devices.sim.gpus import GPUS, load_gpu
    from mimose.planners import PLANNERS, planner_options
    from mimose_bench.experiments import tables
    from mimose_bench.experiments.config import as_flag
    from mimose_bench.experiments.tasks import TASKS

    found = {
        "tasks": {name: _first_line(task) for name, task in TASKS.items()},
        "task_options": {name: task.choices for name, task in TASKS.items() if task.choices},
        "planners": {name: _first_line(planner) for name, planner in PLANNERS.items()},
        "planner_options": {name: planner_options(name) or () for name in PLANNERS},
        "devices": list(DEVICES),
        "simulated": [_simulated(load_gpu(name)) for name in GPUS],
    }
    if json:
        _print_json(found)
        return
    print(tables.table(("task", "what it trains"), found["tasks"].items()))
    for name, options in found["task_options"].items():
        for option, values in options.items():
            print(f"{name}: --task-option {option}={'|'.join(values)}")
    print()
    print(tables.table(("planner", "what it does"), found["planners"].items()))
    for name, options in found["planner_options"].items():
        if options:
            print(f"{name}: {', '.join(map(as_flag, options))}")
    print()
    print("devices:", ", ".join(found["devices"]))
    print()
    headers = ("simulated device", "GPU", "memory", "calibration")
    print(
        tables.table(
            headers,
            [
                (gpu["device"], gpu["title"], tables.size(gpu["memory_bytes"]), gpu["calibration"])
                for gpu in found["simulated"]
            ],
        )
    )


@app.command("data")
def data_(
    task: Annotated[str, typer.Argument(help="Task whose data to look at; 'list' names them.")],
    data: Data = "auto",
    vocab: Vocab = None,
    scale: Scale = "full",
    seed: Seed = 42,
    batch_size: BatchSize = None,
    task_option: TaskOptions = None,
    batches: Annotated[
        int | None,
        typer.Option("--batches", min=1, help="Batches to look at; an epoch, at most 5000."),
    ] = None,
    figures: Annotated[
        Path, typer.Option("--figures", help="Folder for the drawing (PNG, PDF, SVG).")
    ] = Path("figures"),
    json: AsJson = False,
) -> None:
    """Print how large a task's batches are beside the paper's (Fig 3), and draw it."""
    from mimose_bench.experiments.distribution import describe, measure_distribution
    from mimose_bench.experiments.tasks import TaskOptions, make_task
    from mimose_bench.plots import draw_distribution

    options = TaskOptions(
        scale=scale,  # type: ignore[arg-type]  # it checks the name itself
        data=data,
        vocab=vocab,
        seed=seed,
        batch_size=batch_size,
        extra=_pairs("--task-option", task_option),
    )
    found = measure_distribution(make_task(task, options), batches)
    drawn = draw_distribution(found, figures)
    if json:
        _print_json({**found.to_json(), "figures": [str(path) for path in drawn]})
        return
    print(describe(found))
    print("\n".join(["", *map(str, drawn)]))


@app.command()
def doctor(
    out: Annotated[Path, typer.Option("--out", help="Folder that will hold runs.")] = RESULTS,
    json: AsJson = False,
) -> None:
    """Say what this machine has, what is missing and how to get it."""
    from dataclasses import asdict

    from mimose_bench.experiments.doctor import examine

    findings = examine(out)
    if json:
        _print_json([asdict(finding) for finding in findings])
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{finding.state:<7}  {finding.name:<{width}}  {finding.detail}")
            if finding.advice:
                print(f"{'':<7}  {'':<{width}}  -> {finding.advice}")
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)


@app.command()
def calibrate(
    device: Annotated[
        str, typer.Option("--device", help="GPU to measure: cuda or cuda:N.")
    ] = "cuda",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="File for the specification; named after the GPU, here, by default."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Measure this machine's GPU, so that --device sim:FILE simulates it anywhere."""
    from mimose.devices.sim.gpus import save, to_json
    from mimose_bench.experiments import cuda_bench, tables
    from mimose_bench.experiments.calibrate import rows, slug, specification
    from mimose_bench.experiments.planning_cost import measure_planning

    title = cuda_bench.title(device)
    path = out or Path(f"{slug(title)}.json")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}: make it or give another --out")
    _say(f"measuring {title}, which takes less than a minute: leave the GPU alone meanwhile")
    rates, facts = cuda_bench.calibrate(device)
    gpu = specification(rates, facts, measure_planning())
    save(gpu, path)
    if json:
        _print_json({"path": path, "gpu": to_json(gpu)})
        return
    print(tables.table(("measured on cuda", "value", "range"), rows(gpu, rates.matmuls)))
    print(f"\n{path}: give it to --device as sim:{path}")


# -- training


@app.command()
def plan(
    padded: Annotated[
        str,
        typer.Option(
            "--lengths",
            help="Sizes to plan for, separated by commas: padded lengths (128,384), encoder x "
            "decoder (128x512), or heights x widths of images (800x1344). Planners that plan once "
            "need none.",
        ),
    ] = "",
    bounds: Annotated[
        bool,
        typer.Option(
            "--bounds",
            help="Instead measure the least and the most memory of a batch of each of --lengths "
            "(by default the largest), by itself.",
        ),
    ] = False,
    task: Task = "qa-bert",
    budget: Budget = "none",
    planner: PlannerName = "mimose",
    device: Device = "auto",
    scale: Scale = "full",
    seed: Seed = 42,
    data: Data = "auto",
    vocab: Vocab = None,
    weights: Weights = "random",
    attention: Attention = "eager",
    precision: Precision = "fp32",
    plan: PlanText = None,
    margin: Margin = None,
    variant: Variant = None,
    sheltered: Sheltered = None,
    cache_step: CacheStep = None,
    every: Every = None,
    segments: Segments = None,
    heuristic: Heuristic = None,
    sampling: Sampling = None,
    trigger: Trigger = None,
    reserve: Reserve = None,
    actions: Actions = None,
    filter: Filter = None,
    prefetch: Prefetch = None,
    offload: Offload = None,
    time_limit: TimeLimit = None,
    gap: Gap = None,
    plan_size: PlanSize = None,
    planner_option: PlannerOptions = None,
    allocator: Allocator = None,
    zero_grad: ZeroGrad = "keep",
    foreach: Foreach = "auto",
    enforce: Enforce = True,
    optimizer: Optimizer = None,
    batch_size: BatchSize = None,
    task_option: TaskOptions = None,
    threads: Threads = None,
    json: AsJson = False,
) -> None:
    """Print the plans a planner makes for given sizes; trains and records nothing.

    The exit code is 3 where one of the sizes does not fit.
    """
    config = _config(locals())
    asked = _sizes(padded) if padded.strip() else []
    from dataclasses import asdict, replace
    from itertools import zip_longest

    from mimose_bench.experiments import tables
    from mimose_bench.experiments.bounds import describe_bounds, measure_bounds
    from mimose_bench.experiments.menus import describe_menus
    from mimose_bench.experiments.planning import (
        advice,
        as_asked,
        describe_solution,
        parse_sizes,
        plan_sizes,
        plans_table,
    )
    from mimose_bench.experiments.run import opened, task_of

    if bounds:
        work = task_of(config)
        sizes = parse_sizes(work, asked) or [work.longest()]
        found = []
        for text, size in zip_longest(asked, sizes):
            with _out_of_memory_is_3(), opened(config) as opened_device:
                each = measure_bounds(config, work, opened_device, size)
            shown = each.shown if text is None else as_asked(work, text, size)
            found.append(replace(each, shown=shown))
        if json:
            _print_json({"bounds": [asdict(each) for each in found]})
        else:
            print(describe_bounds(found, work.unit, config.budget))
        if not all(each.fits(config.budget) for each in found):
            raise typer.Exit(3)
        return
    with _out_of_memory_is_3():
        answers, facts = plan_sizes(config, asked, _say)
    fits = all(answer.plan is not None for answer in answers)
    if not fits:
        _say(f"mimose-bench: {advice(answers, facts)}")
    if json:
        menus = {"menus": [menu.to_json() for menu in facts["menus"]]} if "menus" in facts else {}
        _print_json({**facts, **menus, "plans": [asdict(answer) for answer in answers]})
        raise typer.Exit(0 if fits else 3)
    print(
        f"{len(facts['blocks'])} blocks, budget {tables.size(facts['budget_bytes'], 'none')}, "
        f"margin {tables.size(facts['margin_bytes'])}, {facts['device_label']}"
    )
    print(plans_table(answers, facts))
    if "solution" in facts:
        print(f"\n{describe_solution(facts)}")
    if facts.get("menus"):
        shown = {answer.size: answer.shown for answer in answers}
        print(describe_menus(facts["menus"], shown, facts["unit"]))
        for answer in answers:
            print(f"chosen for {answer.size[0]} x {answer.shown} {facts['unit']}:")
            print("\n".join(f"  {blocks}: {text}" for blocks, text in answer.chosen))
    if not fits:
        raise typer.Exit(3)


@app.command()
def run(
    task: Task = "qa-bert",
    budget: Budget = "none",
    planner: PlannerName = "mimose",
    device: Device = "auto",
    scale: Scale = "full",
    lengths: Annotated[
        str,
        typer.Option(
            "--lengths",
            help="sampled (batches as the data brings them) or expected (each length of the "
            "data's distribution once, weighted: an epoch's mean without sampling noise).",
        ),
    ] = "sampled",
    steps: Annotated[
        int | None,
        typer.Option("--steps", help="Training steps (200); not with --lengths expected."),
    ] = None,
    seed: Seed = 42,
    data: Data = "auto",
    vocab: Vocab = None,
    weights: Weights = "random",
    attention: Attention = "eager",
    precision: Precision = "fp32",
    plan: PlanText = None,
    margin: Margin = None,
    variant: Variant = None,
    sheltered: Sheltered = None,
    cache_step: CacheStep = None,
    every: Every = None,
    segments: Segments = None,
    heuristic: Heuristic = None,
    sampling: Sampling = None,
    trigger: Trigger = None,
    reserve: Reserve = None,
    actions: Actions = None,
    filter: Filter = None,
    prefetch: Prefetch = None,
    offload: Offload = None,
    time_limit: TimeLimit = None,
    gap: Gap = None,
    plan_size: PlanSize = None,
    planner_option: PlannerOptions = None,
    allocator: Allocator = None,
    zero_grad: ZeroGrad = "keep",
    foreach: Foreach = "auto",
    on_oom: Annotated[
        str,
        typer.Option(
            "--on-oom",
            help="At a batch that fits under no plan: stop with exit code 3, or skip it.",
        ),
    ] = "stop",
    enforce: Enforce = True,
    optimizer: Optimizer = None,
    lr: LearningRate = None,
    batch_size: BatchSize = None,
    task_option: TaskOptions = None,
    threads: Threads = None,
    fresh_plan: FreshPlan = False,
    flops: Flops = "auto",
    out: Out = RESULTS,
    quiet: Quiet = False,
    json: AsJson = False,
) -> None:
    """Train a task under a planner and a budget, and record every iteration."""
    config = _config(locals())
    from mimose_bench.experiments import tables
    from mimose_bench.experiments.records import load_run
    from mimose_bench.experiments.run import run as train

    result = train(config, quiet=quiet)
    if json and result.leads:
        _print_json(result.info)
    elif result.leads:
        print(tables.show(load_run(result.info["summary"]["run_dir"]), num_steps=0))
    if result.message is not None and quiet:
        _say(result.message)
    if result.exit_code:
        raise typer.Exit(result.exit_code)


@app.command()
def sweep(
    grid: Annotated[
        Path | None,
        typer.Argument(help="Grid of runs, a TOML file (docs/sweep.md); or give the options."),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="Tasks, separated by commas.")
    ] = None,
    planners: Annotated[
        str | None,
        typer.Option("--planners", help="Planners, or names of the grid's, separated by commas."),
    ] = None,
    budgets: Annotated[
        str | None,
        typer.Option(
            "--budgets",
            help="Budgets, separated by commas: bytes (4GB), none, shares of the way from the "
            "task's lower to its upper bound (50%; in run a share is one of the device's memory), "
            "or paper. The baseline has none.",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Seeds, separated by commas.")
    ] = None,
    devices: Annotated[
        str | None, typer.Option("--devices", help="Devices, separated by commas.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help="An option of run for every cell, for example steps=50 or data=synthetic; "
            "repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of the sweep; results/NAME of the grid by default. One that holds a "
            "sweep is resumed: what has a result there is not run again.",
        ),
    ] = None,
    executor: Annotated[
        str,
        typer.Option(
            "--executor", help="Where cells run: local, slurm (submitit) or ray, a job each."
        ),
    ] = "local",
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", help="Most processes at once: 1 here, all of them on a cluster."),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", help="GPUs of a cell on a cluster; 1 on cuda, else 0."),
    ] = None,
    partition: Annotated[str | None, typer.Option("--partition", help="Slurm's partition.")] = None,
    minutes: Annotated[
        int | None, typer.Option("--minutes", help="Most minutes of a job of Slurm's.")
    ] = None,
    share: Annotated[
        bool,
        typer.Option(
            "--share/--no-share",
            help="Whether cells of one task on one simulated device run in one process, so that "
            "a step is simulated once for all of them.",
        ),
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells and their commands, run none.")
    ] = False,
    quiet: Quiet = False,
    json: AsJson = False,
) -> None:
    """Run a grid of tasks, planners, budgets, seeds and devices; resumes where it stopped."""
    from mimose_bench.experiments.sweep.grid import option_of, read_grid
    from mimose_bench.experiments.sweep.start import Way, listed, plan
    from mimose_bench.experiments.sweep.start import sweep as carry_out
    from mimose_bench.experiments.sweep.summary import describe

    axes = {"tasks": tasks, "planners": planners, "budgets": budgets, "devices": devices}
    given: dict[str, Any] = {k: _words(v) for k, v in axes.items() if v is not None}
    if seeds is not None:
        given["seeds"] = [int(s) if s.isdigit() else s for s in _words(seeds)]
    given["options"] = dict(option_of(text) for text in option or ())
    asked = read_grid(grid, given)
    if any(":" in planner.of for planner in asked.planners) and "" not in sys.path:
        sys.path.insert(0, "")
    folder = out or RESULTS / (grid.stem if grid is not None else "sweep")
    way = Way(
        executor=executor, jobs=jobs, gpus=gpus, partition=partition, minutes=minutes, share=share
    )
    if dry_run:
        cells = plan(asked, folder, way)
        if json:
            _print_json(listed(cells, folder))
        else:
            for each in listed(cells, folder):
                print(f"{each['cell']}: {each['state']}\n  {each['command']}")
        return
    rows = carry_out(asked, folder, way, (lambda _: None) if quiet else _say)
    if json:
        _print_json(rows)
    else:
        print(describe(rows))
        print(f"\n{folder}")
    if any(row["state"] == "failed" for row in rows):
        raise typer.Exit(1)


@app.command()
def smoke(
    device: Device = "auto",
    scale: Scale = "small",
    out: Out = RESULTS,
    json: AsJson = False,
) -> None:
    """Check in minutes that this machine trains under a budget; exit code 1 if it does not."""
    from dataclasses import asdict

    import torch

    from mimose_bench.experiments import comparing, tables
    from mimose_bench.experiments.cells import CellError
    from mimose_bench.experiments.records import load_run
    from mimose_bench.experiments.smoke import smoke as check

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cpu":
            _say("no CUDA device here: the smoke run uses the cpu")
    try:
        comparison, checks = check(device, scale, out, _say)
    except CellError as error:
        raise ValueError(str(error)) from error
    rows = comparing.compare([load_run(cell.folder) for cell in comparison.cells])
    if json:
        _print_json({"checks": [asdict(c) for c in checks], "runs": rows})
    else:
        print(tables.comparison(rows))
        print()
        for c in checks:
            print(f"{'ok' if c.passed else 'FAILED':<6}  {c.name}: {c.detail}")
    if not all(c.passed for c in checks):
        raise typer.Exit(1)


@app.command()
def demo(
    device: Device = "auto",
    scale: Scale = "small",
    steps: Annotated[int, typer.Option("--steps", help="Training steps of each run.")] = 40,
    out: Out = RESULTS,
    figures: Annotated[Path, typer.Option("--figures", help="Folder for the figures.")] = Path(
        "figures"
    ),
) -> None:
    """Train the same batches without a limit and under one budget; compare and draw them."""
    from mimose_bench.experiments import comparing, tables
    from mimose_bench.experiments.cells import CellError
    from mimose_bench.experiments.comparison import make_comparison
    from mimose_bench.experiments.records import load_run
    from mimose_bench.plots import draw_figures

    arguments = ["--task", "qa-bert", "--scale", scale, "--device", device, "--data", "synthetic"]
    # This seed has no long batch among the first ten: one sees the baseline train before it fails.
    arguments += ["--seed", "1"]
    # One thread: times of neighbours on the same machine disturb two far more.
    arguments += ["--threads", "1"]
    try:
        comparison = make_comparison(arguments, steps=steps, out=out, say=_say)
    except CellError as error:
        raise ValueError(str(error)) from error
    runs = [load_run(cell.folder) for cell in comparison.cells]
    print(tables.comparison(comparing.compare(runs)))
    print(f"\n{_COMPARED}\n")
    for path in draw_figures(runs, figures, (), paper=True, say=_say):
        print(path)


# -- reading


@app.command()
def show(
    run: Annotated[
        str,
        typer.Argument(
            help="A run's folder, its name within --results, 'latest', or a sweep's folder."
        ),
    ] = "latest",
    steps: Annotated[
        int, typer.Option("--steps", min=0, help="How many of the last steps to show.")
    ] = 8,
    results: RunsIn = RESULTS,
    json: AsJson = False,
) -> None:
    """Show one run: how it ended, its peaks, its times; or a sweep's folder, finished or not."""
    from mimose_bench.experiments import tables
    from mimose_bench.experiments.sweep.store import folder_of

    folder = folder_of(run, results)
    if folder is not None:
        _show_sweep(folder, json)
        return
    _refuse_folder_of_runs(run, results)
    (found,) = _open_runs([run], results)
    if json:
        document = {**found.info, "summary": found.summary, "warnings": found.warnings}
        _print_json(document)
    else:
        print(tables.show(found, steps))


@app.command()
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|FOLDER...",
            help="Runs over the same batches, by path or by name within --results, or folders of "
            "such runs.",
        ),
    ],
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="RUN",
            help="The run that the others are held against; by default the baseline, one without "
            "a budget first, or without any the first run.",
        ),
    ] = None,
    results: RunsIn = RESULTS,
    json: AsJson = False,
) -> None:
    """Compare runs over the same batches, step by step, with one of them as the reference."""
    from mimose_bench.experiments import comparing, tables
    from mimose_bench.experiments.sweep.store import folder_of

    folder = folder_of(runs[0], results)
    if len(runs) == 1 and folder is not None:
        _show_sweep(folder, json)
        return
    if reference is not None:
        _refuse_folder_of_runs(reference, results)
    names = runs if reference is None else [reference, *runs]
    found = _open_runs(names, results, least=2)
    tasks = dict.fromkeys(str(run.info.get("task")) for run in found)
    if len(tasks) > 1:
        raise ValueError(
            f"these are runs of several tasks ({', '.join(tasks)}), and only runs over the same "
            "batches can be compared: name those of one task"
        )
    chosen = found[0] if reference is not None else comparing.reference_of(found)
    found = [run for run in found if run is not chosen]
    if reference is not None:  # It may be among the runs as well.
        found = [run for run in found if not run.directory.samefile(chosen.directory)]
    found.insert(0, chosen)
    if len(found) < 2:
        raise ValueError(
            f"compare needs two runs or more, and this is one, {chosen.directory}: name another "
            "over the same batches beside it, or a folder that holds both"
        )
    rows = comparing.compare(found)
    if json:
        _print_json(rows)
        return
    print(tables.comparison(rows))
    limit = f"at {chosen.info.get('budget')}" if chosen.budget_bytes else "without a budget"
    print(f"the reference is {chosen.name}, {chosen.planner_label} {limit}")
    for line in comparing.differences(found):
        print(f"the runs differ in {line}")
    print(f"\n{_COMPARED}")


@app.command()
def plot(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|FOLDER]...",
            help="Runs, drawn task by task, folders of runs, of sweeps or of reproduced values; "
            "every run within --results by default.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the figures.")] = Path("figures"),
    figure: Annotated[
        list[str] | None,
        typer.Option(
            "--figure",
            help="Of runs peak-memory, step-time, loss or breakdown, across tasks fig10, fig11 or "
            "cpu-training, of reproduced values the check's name; repeatable, by default all but "
            "those across tasks.",
        ),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper/--no-paper", help="Draw the paper's own points beside.")
    ] = True,
    results: Results = RESULTS,
    json: AsJson = False,
) -> None:
    """Draw figures of runs or of reproduced values, as PNG, PDF and SVG."""
    from mimose_bench.experiments.gathering import gather
    from mimose_bench.plots import draw_gathered, known_figures

    figures = known_figures(tuple(dict.fromkeys(figure or ())))
    found = gather(runs or (), results)
    for problem in found.problems:
        _say(f"warning: {problem}")
    written = draw_gathered(found, out, figures, paper=paper, say=_say)
    if json:
        _print_json([str(path) for path in written])
    else:
        for path in written:
            print(path)


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Names of checks, for example fig3 or table5; all by default."
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help="auto (sim:v100, the paper's GPU; what is made from recorded runs on cuda where "
            "there is one), sim:NAME, or cuda or cpu for checks made from recorded runs.",
        ),
    ] = "auto",
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A few points of each curve, simulated: all in less than ten minutes."
        ),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, help="Most processes at once; as many as there are cores."),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Leave out checks whose values, made by this code with the same settings, lie in "
            "--out already.",
        ),
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the values (NAME.json) and drawings (plots).")
    ] = RESULTS / "reproduced",
    json: AsJson = False,
) -> None:
    """Compare the paper's figures with ours; exit code 4 if a value is outside its tolerance."""
    from mimose_bench.experiments.figures import text
    from mimose_bench.experiments.figures.reproduce import chosen
    from mimose_bench.experiments.figures.reproduce import reproduce as measure
    from mimose_bench.plots import draw_reproduced

    asked = chosen(names or ())
    jobs = jobs or len(os.sched_getaffinity(0))
    ended, undrawn = {}, False
    for found in measure(asked, device, out, quick=quick, jobs=jobs, keep=keep, say=_say):
        ended[found.name] = found
        if found.result is None:
            continue
        drawn: list[Path] = []
        try:
            runs = _recorded_runs(out, found.name)
            drawn = draw_reproduced(found.result, out / "plots", runs)
        except Exception as error:  # The checks that still run are worth more than a drawing.
            undrawn = True
            _say(f"warning: {found.name} could not be drawn: {error!r}")
        if not json:
            print(text.describe(found.result))
            print("\n".join(["", *map(str, [out / f"{found.name}.json", *drawn]), ""]), flush=True)
    outcomes = [ended[name] for name in asked]
    if json:
        _print_json([found.document for found in outcomes])
    else:
        print("\n".join(map(text.ending, outcomes)))
    if undrawn or any(found.result is None for found in outcomes):
        raise typer.Exit(1)
    if not all(found.result.passed for found in outcomes):
        raise typer.Exit(4)


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(help="Folder of reproduced values, as reproduce --out makes it.")
    ] = RESULTS / "reproduced",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for report.html and report.md; 'report' by default."),
    ] = None,
    docs: Annotated[
        Path | None,
        typer.Option(
            "--docs",
            metavar="FILE",
            help="Write this Markdown page for the project's documents instead, and keep the "
            "values in the folder 'reproduced' beside it.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Write a report of reproduced values, claim by claim, as one HTML page and as Markdown."""
    from mimose_bench.experiments.figures import stored
    from mimose_bench.experiments.figures.reproduce import CHECKS
    from mimose_bench.experiments.report import recorded_values, writing
    from mimose_bench.experiments.report.contents import contents
    from mimose_bench.plots import report_drawings

    outcomes, problems = stored.read_all(folder)
    if problems and not outcomes:
        raise ValueError(f"no file in {folder} can be reported: {'; '.join(problems)}")
    if not outcomes:
        raise ValueError(
            f"there are no reproduced values in {folder}: make them with mimose-bench reproduce"
        )
    written: list[Path] = []
    if docs is not None:
        problems += recorded_values.write(outcomes, docs, tuple(CHECKS))
        written.append(docs)
    if docs is None or out is not None:
        drawn, not_drawn = report_drawings(outcomes, folder)
        problems += [f"{each.name} failed: {each.error}" for each in outcomes if each.error]
        problems += not_drawn
        made = contents(outcomes, tuple(CHECKS), drawn)
        written += writing.write(made, out or Path("report"))
    for problem in problems:
        _say(f"warning: {problem}")
    if json:
        _print_json([str(path) for path in written])
    else:
        print("\n".join(map(str, written)))


# -- what the commands share

_COMPARED = (
    "time: sum over the paired steps, those that both runs finished, relative to the "
    "reference, the first step left out as warm-up; the interval is a bootstrap over them. "
    "Over expected lengths each counts by its share of an epoch, and there is no interval.\n"
    "violations: out-of-memory steps, retried steps and allocator retries."
)
"""What a table of compared runs means."""


def _config(options: dict[str, Any]) -> Any:
    """Return the run's configuration from the options of a command, by their names."""
    from dataclasses import fields

    from mimose_bench.experiments.config import RunConfig

    if ":" in options["planner"] and "" not in sys.path:
        sys.path.insert(0, "")  # package.module:Class is looked for here, too.
    given = {f.name: options[f.name] for f in fields(RunConfig) if f.name in options}
    budget, margin = options["budget"], options["margin"]
    given["budget"] = _budget(budget, options["device"])
    given["margin"] = None if margin is None else _margin(margin)
    given["planner_options"] = _pairs("--planner-option", options["planner_option"])
    given["task_options"] = _pairs("--task-option", options["task_option"])
    return RunConfig(**given)


def _budget(text: str, device: str) -> int | None:
    if text.strip().lower() == "none":
        return None

    def memory() -> int:
        from mimose_bench.experiments.opening import memory_of

        return memory_of(device)

    return parse_budget(text, memory)


def _margin(text: str) -> int:
    from mimose.planners.options import byte_count

    return byte_count("--margin", text)


def _sizes(text: str) -> list[str]:
    sizes = _words(text)
    if not sizes:
        raise ValueError("say which sizes to plan for, separated by commas: --lengths 128,384")
    return sizes


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    options = {}
    for item in given or ():
        key, sign, value = item.partition("=")
        if not key or not sign:
            raise ValueError(f"{option} takes KEY=VALUE, not {item!r}")
        options[key.strip().replace("-", "_")] = value
    return options


def _open_runs(names: list[str], results: Path, least: int = 1) -> list[Any]:
    """Return the runs, their rows read, so that what had to be passed over is said once.

    A folder of runs stands for all in it that are not there yet. A run that is there and cannot be
    read is passed over, too, unless it is the first or fewer than ``least`` would be left.
    """
    from mimose_bench.experiments.reading import folder_of_runs, open_run, runs_in

    runs: list[Any] = []
    problems = []
    expected = len(names)
    for name in names:
        if (folder := folder_of_runs(name, results)) is not None:
            within, said = runs_in(folder)
            if not within:
                raise ValueError(f"no run in {folder} can be read: {'; '.join(said)}")
            known = {run.directory.resolve() for run in runs}
            runs += [run for run in within if run.directory.resolve() not in known]
            problems += said
            expected += len(within) + len(said) - 1
            continue
        try:
            opened = open_run(name, results)
            _ = opened.steps
        except ValueError as error:
            is_there = Path(name).exists() or (results / name).exists()
            if not runs or not is_there or expected - len(problems) <= least:
                raise
            problems.append(f"{error}: passed over")
        else:
            runs.append(opened)
            problems += opened.warnings
    for problem in problems:
        _say(f"warning: {problem}")
    return runs


def _recorded_runs(folder: Path, check: str) -> list[Any]:
    """Return the runs that a check recorded, those that can be read."""
    from mimose_bench.experiments.reading import readable_runs

    runs, problems = readable_runs(folder / "runs" / check)
    for problem in problems:
        _say(f"warning: {problem}")
    return runs


def _refuse_folder_of_runs(name: str, results: Path) -> None:
    """Raise ``ValueError`` if ``name`` is a folder of runs where one run is meant."""
    from mimose_bench.experiments.reading import find_runs, folder_of_runs

    folder = folder_of_runs(name, results)
    if folder is None:
        return
    runs = find_runs(folder)
    raise ValueError(
        f"{folder} holds runs ({len(runs)}) and is none itself: name one of them, for example "
        f"{runs[0]}, or give the folder to mimose-bench compare or mimose-bench plot"
    )


def _show_sweep(folder: Path, json: bool) -> None:
    from mimose_bench.experiments.sweep.summary import describe, read

    rows = read(folder)
    if json:
        _print_json(rows)
    else:
        print(describe(rows))


def _simulated(gpu: Any) -> dict[str, Any]:
    from mimose.devices.sim.gpus import to_json

    shown = ("title", "memory_bytes", "calibration", "clock_error")
    return {"device": f"sim:{gpu.name}", **{k: v for k, v in to_json(gpu).items() if k in shown}}


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0]


def _print_json(data: Any) -> None:
    import json

    from mimose_bench.experiments.files import jsonable

    print(json.dumps(jsonable(data), indent=2, allow_nan=False))


@contextlib.contextmanager
def _out_of_memory_is_3() -> Iterator[None]:
    """End as a run does that nothing can make fit, in commands that record no outcome."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        _fail(error)
        raise typer.Exit(3) from None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _fail(error: BaseException) -> int:
    if os.environ.get("MIMOSE_DEBUG") == "1":
        raise error
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"cannot read or write {error.filename or 'a file'} ({error.strerror})"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text += ": make room there or name another folder with --out; what was written is kept"
    if isinstance(error, ImportError):
        text += ": mimose-bench doctor says what to install"
    _say(f"mimose-bench: {text}")
    return 1


def main() -> None:
    """Run the command line and exit with its code."""
    from mimose.costs import Infeasible
    from mimose_bench.experiments import stopping
    from mimose_bench.experiments.config import BudgetTooSmallError

    try:
        Path.cwd()
    except OSError:  # Libraries that commands load end the program there without a word of ours.
        _say("mimose-bench: the working folder is not there any more: change to another one")
        sys.exit(1)
    # Schedulers end a job with SIGTERM: it is recorded like one ended at the keyboard.
    stopping.install()
    try:
        try:
            app(prog_name="mimose-bench")
        finally:
            if sys.stdout is not None:  # None where it was closed from the start
                sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:
        # Typer makes exit code 1 of a broken pipe.
        if not isinstance(error, BrokenPipeError) and not isinstance(
            error.__context__, BrokenPipeError
        ):
            raise
        # Whoever read our output has gone (head, less): nothing is left to say, and the
        # interpreter must not try to flush again on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        _say("interrupted")
        sys.exit(130)
    except (Infeasible, BudgetTooSmallError) as error:
        _fail(error)
        sys.exit(3)
    except ImportError as error:
        if (error.name or "").startswith("mimose"):
            raise  # our own fault, not the machine's
        sys.exit(_fail(error))
    except (ValueError, OSError, RuntimeError, OverflowError, MemoryError) as error:
        sys.exit(_fail(error))


if __name__ == "__main__":
    main()
