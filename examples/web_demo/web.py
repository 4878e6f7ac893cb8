"""The demo's page in Gradio: choose a network, a picture and engines, and compare the results."""

import html
import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr

from jaxdelegate.version import __version__
from sample_tasks.tasks import TASKS
from web_demo import handlers
from web_demo.engines import ENGINES, LITERT, REFERENCE
from web_demo.handlers import GENERATED, SOURCES, UPLOAD, Handlers
from web_demo.uploads import MAX_FILE_BYTES

_CSS = Path(__file__).with_name("web.css")
_FONT = ("system-ui", "sans-serif")  # so that no font is downloaded
_MONO = ("ui-monospace", "monospace")
_FIRST = (REFERENCE.name, LITERT.name, "XLA float32", "XLA exact integers")
_QUEUE = "engines"  # one run at a time, so that runs do not slow each other down
_EXPLANATION = (
    "<p class='note'><b>Ready</b>: load and compile. <b>Latency</b>: median of up to 20 inferences "
    "after a first one. <b>Largest difference</b>: of any output from the numpy reference on the "
    "same network, as a fraction of that output's largest value; it needs the numpy reference to "
    "be chosen. <b>XLA exact integers</b> runs the int8 network, the others the float32 one; a "
    ".tflite file runs as it is.</p>"
)


def launch(folder: str, host: str, port: int | None) -> None:
    """Serve the page until Ctrl-C; its files are written to `folder`."""
    page = build(folder).queue(default_concurrency_limit=1)
    _, address, _ = page.launch(
        server_name=host,
        server_port=port,
        prevent_thread_lock=True,
        quiet=True,
        share=False,
        ssr_mode=False,
        footer_links=[],
        run_history=False,
        max_file_size=2 * MAX_FILE_BYTES,  # `uploads` has the limit and a better message
        allowed_paths=[folder],
        theme=_theme(),
        css_paths=_CSS,
    )
    print(f"The demo is at {address} until Ctrl-C", flush=True)
    page.block_thread()


def build(folder: str) -> gr.Blocks:
    """The page's videos are written to `folder`."""
    with gr.Blocks(title="jaxdelegate", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(_head())
        with gr.Row(elem_id="columns"):
            with gr.Column(elem_id="controls"):
                controls = _controls()
            with gr.Column(elem_id="results"):
                results = _results()
        _connect(page, controls, results, Handlers(folder))
    return page


def _controls() -> SimpleNamespace:
    widgets = SimpleNamespace()
    networks = [(name.capitalize(), name) for name in TASKS]
    widgets.network = gr.Radio(
        [*networks, UPLOAD], value="detection", label="Network", elem_id="network"
    )
    widgets.file = gr.File(label=".tflite file", visible=False, elem_id="file", height=120)
    widgets.source = gr.Radio(list(SOURCES), value=GENERATED, label="Picture", elem_id="source")
    with gr.Row(elem_id="generated") as widgets.generated:
        widgets.seed = gr.Number(
            0, label="Seed", precision=0, minimum=0, min_width=80, elem_id="seed"
        )
        widgets.another = gr.Button("Another picture", min_width=120, elem_id="another")
    widgets.image = gr.Image(
        label="Image", sources=["upload", "webcam", "clipboard"], visible=False, elem_id="image",
        height=220,
    )  # fmt: skip
    widgets.video = gr.Video(
        label="Video", sources=["upload"], visible=False, elem_id="video", height=220
    )
    widgets.camera = gr.Image(
        label="Live camera", sources=["webcam"], streaming=True, visible=False, elem_id="camera",
        height=220,
    )  # fmt: skip
    widgets.engines = gr.CheckboxGroup(
        list(ENGINES), value=list(_FIRST), label="Engines", elem_id="engines"
    )
    widgets.run = gr.Button("Run", variant="primary", elem_id="run")
    return widgets


def _results() -> SimpleNamespace:
    widgets = SimpleNamespace(showing=gr.State(), problem=gr.HTML(visible=False, elem_id="problem"))
    with gr.Column(elem_id="all") as widgets.whole:  # except the problem
        widgets.shown = gr.Radio(
            list(_FIRST), value=handlers.SHOWN_FIRST, label="Result of", elem_id="shown"
        )
        with gr.Row(elem_id="outcome"):
            with gr.Column(elem_id="found"):
                widgets.image = gr.Image(
                    show_label=False, interactive=False, elem_id="drawn", buttons=["fullscreen"],
                    alt_text="The picture with what the network found",
                )  # fmt: skip
                widgets.video = gr.Video(
                    show_label=False, interactive=False, visible=False, autoplay=True, loop=True,
                    elem_id="annotated",
                )  # fmt: skip
                widgets.words = gr.HTML(elem_id="words")
            with gr.Column(elem_id="numbers"):
                gr.HTML("<h2>Comparison</h2>")
                widgets.comparison = gr.HTML(elem_id="comparison")
                gr.HTML(_EXPLANATION)
                gr.HTML("<h2>Delegation report</h2>")
                widgets.report = gr.HTML(elem_id="report")
    return widgets


def _connect(page: gr.Blocks, c: SimpleNamespace, r: SimpleNamespace, handle: Handlers) -> None:
    choice = [c.network, c.file, c.source, c.seed, c.image, c.video, c.camera, c.engines, r.shown]
    views = [r.image, r.video, r.words, r.comparison, r.report]
    c.network.change(_visible(UPLOAD), c.network, c.file, **_at_once())
    for source, widget in zip(SOURCES, (c.generated, c.image, c.video, c.camera), strict=True):
        c.source.change(_visible(source), c.source, widget, **_at_once())
    c.another.click(lambda seed: int(seed or 0) + 1, c.seed, c.seed, **_at_once())
    gr.on(
        [page.load, c.run.click, c.network.input, c.source.input, c.seed.change, c.file.change,
         c.image.change, c.video.change],
        handle.run,
        choice,
        [r.showing, r.problem, r.whole, r.shown, *views],
        trigger_mode="always_last",
        concurrency_id=_QUEUE,
        show_progress="hidden",
        api_visibility="private",
    )  # fmt: skip
    r.shown.input(
        handle.show, [r.showing, r.shown], views,
        concurrency_id=_QUEUE, show_progress="hidden", api_visibility="private",
    )  # fmt: skip
    c.camera.stream(  # not in the queue, which it would block as long as the camera runs
        handle.live, [c.camera, c.network, c.file, r.shown],
        [r.problem, r.whole, r.image, r.video, r.words],
        stream_every=0.1, time_limit=600, concurrency_limit=4, show_progress="hidden",
        api_visibility="private",
    )  # fmt: skip


def _visible(value: str) -> Any:
    """A handler that shows a widget only if `value` is chosen."""
    return lambda chosen: gr.update(visible=chosen == value)


def _at_once() -> dict[str, Any]:
    return {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


def _theme() -> Any:
    hues = {"primary_hue": "blue", "secondary_hue": "blue", "neutral_hue": "slate"}
    sizes = {"spacing_size": "sm", "radius_size": "sm", "text_size": "md"}
    theme = gr.themes.Default(**hues, **sizes, font=_FONT, font_mono=_MONO)
    return theme.set(
        body_text_color_subdued="*neutral_600",  # the default is hard to read
        block_info_text_color="*neutral_600",
        block_label_text_color="*neutral_700",
        block_title_text_color="*neutral_700",
        block_title_text_weight="600",
    )


def _head() -> str:
    packages = (("jax", "jax"), ("LiteRT", "ai-edge-litert"))
    others = ", ".join(f"{name} {importlib.metadata.version(p)}" for name, p in packages)
    return (
        "<header><h1>jaxdelegate</h1>"
        "<p>A TensorFlow Lite network on XLA, next to the numpy reference and stock LiteRT</p>"
        f"<p class='versions'>{html.escape(f'jaxdelegate {__version__}, {others}')}</p></header>"
    )
