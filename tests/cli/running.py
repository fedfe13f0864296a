"""Run commands that must end well, and wrong ones that must not."""

from pathlib import Path

from tests.command import flatfold


def words(text):
    """Return a text without its line breaks."""
    return " ".join(text.split())


def succeed(*arguments, cwd="."):
    """Run a command that must end well."""
    done = flatfold(*arguments, cwd=cwd)
    assert done.returncode == 0, (arguments, done.stderr)
    return done


def assert_mistakes(command, cases, cwd):
    """Run a command with wrong arguments: each case has its exit code and keyword, and no file may change."""
    before = listing(cwd)
    for arguments, code, keyword in cases:
        done = flatfold(*command, *arguments, cwd=cwd)
        case = f"{arguments}: {done}"
        assert done.returncode == code, case
        assert keyword in words(done.stderr), case
        assert "Traceback" not in done.stderr, case
        assert done.stdout == "", case
        assert listing(cwd) == before, case


def listing(folder):
    """Return all files with the times of their last change."""
    paths = (path for path in Path(folder).rglob("*") if "__pycache__" not in str(path))
    return {str(path): path.stat().st_mtime_ns for path in paths if path.is_file()}
