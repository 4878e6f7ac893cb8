"""Hosts that cannot stand beside the newest ai-edge-litert: `nox -s litert_1_4 tf_lite`."""

import nox

nox.options.default_venv_backend = "venv"


@nox.session
def litert_1_4(session: nox.Session) -> None:
    """The bridge in the oldest stock interpreter that shares a process with numpy 2."""
    session.install("-e", ".[test]")
    session.install("--no-deps", "ai-edge-litert==1.4.0")
    session.run("pytest", "tests/litert", "-m", "not slow", *session.posargs)


@nox.session
def tf_lite(session: nox.Session) -> None:
    """A sample of the bridge's tests in tf.lite's interpreter."""
    session.install("-e", ".[test]", "tensorflow-cpu>=2.19")
    session.run("pytest", "tests/litert/test_tf_lite.py", *session.posargs)
