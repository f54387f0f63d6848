import pytest

from mimose_bench.experiments.sweep.grid import Budget, option_of, read_grid

GRID = """
tasks = ["qa-bert", "tc-bert"]
planners = ["baseline", "mimose", "authors"]
budgets = ["4GB", 5368709120, "50%", "none"]
seeds = [1, 2]
devices = ["sim:v100"]

[options]
steps = 20
zero-grad = "free"

[planner.authors]
planner = "mimose"
variant = "authors"
budgets = ["4GB"]
planner-options = { lookahead = 3, strict = true }

[task.tc-bert]
budgets = ["paper"]
lr = 1
steps = 10
"""


@pytest.fixture
def read(tmp_path):
    def read(text, **given):
        path = tmp_path / "grid.toml"
        path.write_text(text)
        return read_grid(path, given)

    return read


def test_a_file_says_everything(read):
    grid = read(GRID)
    qa, tc = grid.tasks
    baseline, mimose, authors = grid.planners
    assert (authors.name, authors.of) == ("authors", "mimose")
    assert grid.seeds == (1, 2)
    assert grid.budgets_of(qa, mimose) == (
        Budget("4GB", num_bytes=4 << 30),
        Budget("5368709120", num_bytes=5 << 30),
        Budget("50%", share=0.5),
        Budget("none"),
    )
    assert [b.text for b in grid.budgets_of(tc, mimose)] == ["paper"]
    assert [b.text for b in grid.budgets_of(tc, authors)] == ["4GB"]
    assert [b.text for b in grid.budgets_of(qa, baseline)] == ["none"]


def test_options_of_a_planner_come_before_a_tasks_and_those_before_all(read):
    grid = read(GRID.replace('variant = "authors"', "variant = 'authors'\nsteps = 5"))
    (qa, tc), (_, mimose, authors) = grid.tasks, grid.planners
    assert grid.options_of(qa, mimose) == {"steps": 20, "zero_grad": "free"}
    assert grid.options_of(tc, mimose)["steps"] == 10
    found = grid.options_of(tc, authors)
    assert found["steps"] == 5
    assert found["planner_options"] == {"lookahead": "3", "strict": "true"}
    assert found["lr"] == 1.0
    assert isinstance(found["lr"], float)


def test_the_command_line_takes_the_files_place(read):
    grid = read(GRID, tasks=["qa-bert"], planners=["full"], options={"steps": 3})
    assert [p.of for p in grid.planners] == ["full"]
    assert grid.options == {"steps": 3, "zero_grad": "free"}


def test_no_file_is_needed():
    grid = read_grid(None, {"tasks": ["qa-bert"], "planners": ["full"]})
    assert [b.text for b in grid.budgets] == ["none"]
    assert grid.devices == ("auto",)
    assert grid.seeds == (42,)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tasks", "taks", "there is no 'taks': did you mean 'tasks'?"),
        ("steps = 20", "stepz = 20", "options: there is no 'stepz': did you mean 'steps'?"),
        ("steps = 20", "budget = '4GB'", "options: there is no 'budget': "),
        ("steps = 20", "steps = 'ten'", "options.steps must be a whole number, not 'ten'"),
        ("steps = 20", "steps = true", "options.steps must be a whole number, not True"),
        ("steps = 20", "enforce = 1", "options.enforce must be true or false, not 1"),
        ("lr = 1", "lr = '1'", "task.tc-bert.lr must be a number, not '1'"),
        ('"free"', "3", "options.zero-grad must be text, not 3"),
        ('"50%"', '"150%"', "a budget's share is from 0% to 100%, not '150%'"),
        ('"50%"', '"4 GO"', "'4 GO' is not a number of bytes"),
        ('"50%"', "-1", "not a positive number of bytes"),
        ('"50%"', '"4GB"', "a budget is named twice"),
        ("seeds = [1, 2]", "seeds = 1", "seeds must be a list with something in it, not 1"),
        ("seeds = [1, 2]", "seeds = ['1']", "seeds are whole numbers, not '1'"),
        ('"tc-bert"]', '"qa-bert"]', "qa-bert is named twice in tasks"),
        ("[task.tc-bert]", "[task.tc-brt]", "tc-brt is not among tasks: did you mean 'tc-bert'?"),
        ('planner = "mimose"', "planner = 3", "planner.authors.planner is a planner's name"),
        (
            "planner-options = {",
            "planner-options = 3 #",
            "planner.authors.planner-options must be a table, not 3",
        ),
        ("tasks = [", "tasks = ", "is not TOML"),
        ("[options]", "[options", "is not TOML"),
        ('tasks = ["qa-bert", "tc-bert"]', "", "names no tasks"),
    ],
)
def test_what_is_wrong_is_named_in_one_sentence(read, old, new, said):
    text = GRID.replace(old, new)
    assert text != GRID
    if "names no tasks" in said:
        text = text.partition("[task")[0]
    with pytest.raises(ValueError, match=r"grid\.toml") as error:
        read(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        read_grid(tmp_path / "none.toml", {})
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not text in UTF-8"):
        read_grid(tmp_path / "bytes.toml", {})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("steps=50", ("steps", 50)),
        ("--zero-grad=free", ("zero_grad", "free")),
        ("enforce=false", ("enforce", False)),
        ("gap=0.5", ("gap", 0.5)),
        ("margin=1MB", ("margin", 1 << 20)),
        ("margin=12", ("margin", 12)),
    ],
)
def test_options_of_the_command_line_have_types(text, found):
    assert option_of(text) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps", "--option takes KEY=VALUE, not 'steps'"),
        ("=3", "--option takes KEY=VALUE, not '=3'"),
        ("step-z=3", "--option: there is no 'step-z': did you mean 'steps'?"),
        ("steps=x", "--option steps must be a whole number, not 'x'"),
        ("--batch-size=x", "--option batch-size must be a whole number, not 'x'"),
        ("margin=much", "--option margin"),
        ("planner-options=a", "--option planner-options is a table: give it in a grid file"),
    ],
)
def test_bad_options_of_the_command_line_are_named_as_typed(text, said):
    with pytest.raises(ValueError, match="--option") as error:
        option_of(text)
    assert str(error.value).startswith(said)
