"""A language model from a bundle, with its tokenizer and its compiled programs."""

import functools
import logging
import math
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.bundles.bundle import Bundle, open_bundle
from jaxdelegate.bundles.tokenizers import Tokenizer
from jaxdelegate.cache.programs import ProgramCache
from jaxdelegate.errors import ModelError, OptionError
from jaxdelegate.lm.adapters import Adapter, read_adapter
from jaxdelegate.lm.audio.sound_encoder import takes_sounds
from jaxdelegate.lm.background_compiler import BackgroundCompiler
from jaxdelegate.lm.completions import Completion
from jaxdelegate.lm.configs import (
    BACKENDS,
    ActivationDataType,
    Backend,
    ConstrainedDecodingConfig,
    LoraConfig,
    LoraRankConfig,
    NoRepeatNgramConfig,
    RepetitionPenaltyConfig,
    SamplerConfig,
    SuppressTokensConfig,
    ThinkingConfig,
    instance,
    output_limit,
    with_activations,
    with_backend,
)
from jaxdelegate.lm.content_encoders import content_encoders
from jaxdelegate.lm.contents.content_encoder import ContentEncoder
from jaxdelegate.lm.contents.message_contents import read_contents
from jaxdelegate.lm.conversation import Conversation, Settings
from jaxdelegate.lm.generation import generate, hidden_state_request, hidden_states
from jaxdelegate.lm.graph import DRAFTER, EMBEDDERS, LanguageGraph
from jaxdelegate.lm.hidden_states import NO_HIDDEN_STATES
from jaxdelegate.lm.interfaces import AbstractEngine
from jaxdelegate.lm.language_model import LanguageModel
from jaxdelegate.lm.messages import Contents, stated
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.places import Attention, declared_attention
from jaxdelegate.lm.program_spec import cache_arrays
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.scheduler import Scheduler
from jaxdelegate.lm.session import Session
from jaxdelegate.lm.text_processor import TextProcessor, declaring
from jaxdelegate.lm.tools import Tool, ToolEventHandler, tool_map
from jaxdelegate.lm.unsupported import refuse
from jaxdelegate.lm.vision.image_encoder import takes_images
from jaxdelegate.lru_cache import LruCache
from jaxdelegate.model.files import version
from jaxdelegate.model.sections import EXECUTOR_METADATA
from jaxdelegate.model.source import BundledModel
from jaxdelegate.text import printable

_PART = "prefill_decode"
_LOGGER = logging.getLogger("jaxdelegate")
_MOST_ADAPTERS = 64  # that were read last, and stay in memory


class Engine(AbstractEngine):
    """A bundle's language model, ready to generate text.

    ```python
    from jaxdelegate import lm as litert_lm

    with litert_lm.Engine("model.litertlm") as engine:
        with engine.create_conversation() as conversation:
            print(conversation.send_message("What is the capital of France?"))
    ```

    Sessions and conversations share its weights and programs; each has caches of its own. Any
    thread may create them.
    """

    backend: Backend
    max_num_tokens: int  # of a prompt and its answer, at most

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        backend: Backend | type[Backend] | None = None,
        max_num_tokens: int | None = None,
        max_num_images: int | None = None,
        cache_dir: str | None = None,
        *,
        vision_backend: Backend | type[Backend] | None = None,
        audio_backend: Backend | type[Backend] | None = None,
        max_batch: int = 8,
        options: Mapping[str, Any] | None = None,
        enable_speculative_decoding: bool | None = None,
        activation_data_type: ActivationDataType | None = None,
        lora_rank_config: LoraRankConfig | None = None,
        batch_invariant: bool = False,
        kv_cache_dtype: str = "auto",
        **unsupported: Any,
    ) -> None:
        """Open a bundle. Programs are compiled when they are first needed.

        Args:
            model_path: of a `.litertlm` or `.task` file.
            backend: where it runs; None: JAX's default device.
            max_num_tokens: of a prompt and its answer, at most; it chooses among caches of several
                lengths, if the bundle has them. None: as the bundle declares, or as many as the
                longest caches hold.
            max_num_images: of a message, at most; None: any number.
            cache_dir: the folder of compiled programs, which the next start loads. None:
                `jaxdelegate` in the user's folder of caches (`$XDG_CACHE_HOME`, or `~/.cache`), of
                at most 10 GB. ":nocache": they are not stored.
            vision_backend: where images are encoded; None: messages have none. `Backend()`: where
                the language model runs.
            audio_backend: where sounds are encoded; None: messages have none.
            max_batch: the most prompts that `generate` processes at once.
            options: of JaxDelegate, for example `{"compute_dtype": "float16"}`.
            enable_speculative_decoding: whether the bundle's drafter proposes tokens, several of
                which the model checks at once; only rounding can change answers. None: no.
            activation_data_type: FLOAT16 is the option `compute_dtype="float16"`; None: float32.
            lora_rank_config: of the LoRA adapters that prompts may be computed with, a rank that
                the bundle's model takes. None: with none, unless all of its signatures take them.
            batch_invariant: whether answers of `generate`, and their log probabilities, are bit for
                bit those of each prompt alone: see [equal answers](../lm.md#equal-answers).
            kv_cache_dtype: of float32 KV caches: "float32", "float16", "bfloat16" or
                "int8_per_token_head". "auto": on a GPU as `compute_dtype`, else float32. See
                [KV caches](../lm.md#kv-caches).
            **unsupported: other arguments of `litert_lm.Engine`; None and False are accepted.

        Raises:
            ModelError: the bundle is damaged, or its model is not one that generates text.
            OptionError: an option is unknown, out of range or not supported, a package of the extra
                `lm` is missing, or speculative decoding is requested and the bundle has no drafter,
                or answers are to be `batch_invariant`.
        """
        refuse("Engine", unsupported)
        began = time.perf_counter()
        for name, value in (("max_batch", max_batch), ("max_num_tokens", max_num_tokens)):
            if value is not None and value < 1:
                raise OptionError(f"{name}: expected at least 1, got {value}")
        if max_num_images is not None and max_num_images < 0:
            raise OptionError(f"max_num_images: expected at least 0, got {max_num_images}")
        self.bundle: Bundle = open_bundle(model_path)
        self.max_batch, self.batch_invariant = max_batch, batch_invariant
        given = instance(backend)
        options = with_activations(options or {}, activation_data_type)
        chosen = with_backend(options, given)
        sees, hears = instance(vision_backend), instance(audio_backend)
        self.contents = content_encoders(
            self.bundle, options, cache_dir, self.tokenize, sees=sees, hears=hears
        )
        where = f"{self.bundle.path}!{_PART}"
        models = self.bundle.models
        others = {part: models[part] for part in (*EMBEDDERS.values(), DRAFTER) if part in models}
        self._model = LanguageModel(
            self.model,
            where,
            others,
            chosen,
            max_num_tokens or self._declared_limit,
            cache_dir,
            attention=self._attention(),
            soft_size=self.contents.size,
            lora_rank=0 if lora_rank_config is None else lora_rank_config.rank,
            kv_cache_dtype=kv_cache_dtype,
        )
        self._adapters: LruCache[Hashable, Adapter] = LruCache(_MOST_ADAPTERS)
        super().__init__(
            model_path=self.bundle.path,
            backend=given or BACKENDS[self.platform](),
            max_num_tokens=self.graph.limit,
            max_num_images=max_num_images,
            cache_dir=cache_dir,
            vision_backend=sees,
            audio_backend=hears,
            enable_speculative_decoding=enable_speculative_decoding,
            activation_data_type=activation_data_type,
            lora_rank_config=lora_rank_config,
            **{name: value for name, value in unsupported.items() if name != "enable_benchmark"},
        )
        self._has_drafts(None)  # an OptionError if it cannot
        self.init_time_in_second = time.perf_counter() - began

    # ---- what it is

    @functools.cached_property
    def text(self) -> TextProcessor:
        """The bundle's tokenizer, templates, stops and sampling parameters."""
        return TextProcessor(self.bundle, self.graph.vocabulary)

    @property
    def images(self) -> ContentEncoder | None:
        """What encodes images; None: prompts have none."""
        return self.contents.encoders.get("image")

    @property
    def sounds(self) -> ContentEncoder | None:
        """What encodes sounds; None: prompts have none."""
        return self.contents.encoders.get("audio")

    @property
    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer."""
        return self.text.tokenizer

    @property
    def model(self) -> BundledModel:
        """The language model alone, a path `bundle.litertlm!part`.

        Raises:
            ModelError: the bundle has none.
        """
        models = self.bundle.models
        if _PART not in models and len(models) != 1:
            raise ModelError(
                f"{printable(self.bundle.path)}: expected a language model, the part {_PART!r}, "
                f"got {printable(', '.join(models)) or 'no models'}"
            )
        return models[_PART if _PART in models else next(iter(models))]

    @property
    def graph(self) -> LanguageGraph:
        """The signatures of the language model that read and generate tokens."""
        return self._model.graph

    @property
    def bos_token_id(self) -> int | None:
        """The token before a prompt, if the bundle declares one."""
        return next(iter(self.text.start_ids), None)

    @property
    def eos_token_ids(self) -> list[list[int]]:
        """The sequences of tokens that end an answer."""
        return self.text.stops.sequences

    @property
    def platform(self) -> str:
        """Where it runs: "cpu", "gpu" or "tpu"."""
        return self._model.platform

    @property
    def is_reduced(self) -> bool:
        """Whether it computes float32 in reduced precision."""
        return self._model.is_reduced

    @property
    def programs(self) -> ProgramCache | None:
        """The folder of compiled programs; None: they are not stored."""
        return self._model.programs

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on the device, as far as programs have needed them."""
        return self._model.weight_bytes

    @property
    def cache_bytes(self) -> int:
        """Bytes of the caches of one sequence of `max_num_tokens`; short ones have less."""
        longest = next(n for n in self.graph.cache_lengths if n >= self.max_num_tokens)
        arrays = cache_arrays(self.graph, 1, longest)
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in arrays)

    def tokenize(self, text: str) -> list[int]:
        """The token ids of a text, without a start token."""
        return self.text.tokenize(text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids; those that the tokenizer does not have are left out."""
        return self.text.detokenize(token_ids)

    # ---- generation

    def create_session(
        self,
        *,
        apply_prompt_template: bool = True,
        sampler_config: SamplerConfig | None = None,
        max_output_tokens: int | None = None,
        lora_config: LoraConfig | None = None,
        enable_speculative_decoding: bool | None = None,
        **unsupported: Any,
    ) -> Session:
        """A session: text in, text out.

        Args:
            apply_prompt_template: surround each prompt with the texts that the bundle declares for
                the user's and the model's turns, if it has no Jinja template.
            sampler_config: how tokens are chosen; None: as the bundle says, or the most likely one.
            max_output_tokens: of an answer; None: as many as `max_num_tokens` leaves.
            lora_config: the LoRA adapter of the session; None: none.
            enable_speculative_decoding: as in `Engine`; None: as the engine.
            **unsupported: other arguments of `litert_lm`; None and False are accepted.

        Raises:
            ModelError: the adapter's file is damaged, or not one for the model.
            OptionError: an argument is not supported, the bundle has no drafter, or the engine was
                opened without `lora_rank_config`.
        """
        refuse("create_session", unsupported)
        return Session(
            self.text,
            self._new_runner_with(lora_config, drafts=enable_speculative_decoding),
            self.text.sampling_params(sampler_config),
            max_output_tokens,
            has_affixes=apply_prompt_template,
            init_seconds=self.init_time_in_second,
            read=self._read,
        )

    def create_conversation(
        self,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        extra_context: Mapping[str, Any] | None = None,
        sampler_config: SamplerConfig | None = None,
        system_message: str | None = None,
        max_output_tokens: int | None = None,
        chat_template: str | None = None,
        thinking_config: ThinkingConfig | None = None,
        tools: Sequence[Callable[..., Any] | Tool] | None = None,
        tool_event_handler: ToolEventHandler | None = None,
        automatic_tool_calling: bool = True,
        constrained_decoding_config: ConstrainedDecodingConfig | None = None,
        filter_channel_content_from_kv_cache: bool | None = None,
        text_contents: bool | None = None,
        lora_config: LoraConfig | None = None,
        enable_speculative_decoding: bool | None = None,
        **unsupported: Any,
    ) -> Conversation:
        """A conversation: messages in, messages out, by the bundle's chat template.

        Args:
            messages: what was said before: Messages, or dictionaries with `role` and `content`.
            extra_context: variables for the template.
            sampler_config: how tokens are chosen; None: as the bundle says, or the most likely one.
            system_message: what the model reads before all messages.
            max_output_tokens: of an answer; None: as many as `max_num_tokens` leaves.
            chat_template: in Jinja; None: the bundle's.
            thinking_config: whether the template asks the model to think; None: as the template
                likes.
            tools: functions or Tools that the model may call. If the template does not show tools,
                a message describes them.
            tool_event_handler: sees calls before tools run, and their results.
            automatic_tool_calling: whether the conversation calls tools and sends their results to
                the model, until an answer has no call; False: answers have `tool_calls`.
            constrained_decoding_config: whether calls match the schemas of their tools.
            filter_channel_content_from_kv_cache: whether the model forgets what it said in
                channels, for example its reasoning, before the next message; None: it does.
            text_contents: whether the template gets a message's content as a text; False: as a list
                of `{"type": "text", "text": ...}`, as in LiteRT-LM 0.18. None: as a list, unless
                the template fails on lists or leaves them out.
            lora_config: the LoRA adapter of the conversation; None: none.
            enable_speculative_decoding: as in `Engine`; None: as the engine.
            **unsupported: other arguments of `litert_lm`; None and False are accepted.

        Raises:
            ModelError: the template or the adapter's file is damaged, or that is not one for the
                model.
            OptionError: an argument is not supported, minijinja is not installed, the bundle has no
                drafter, or the engine was opened without `lora_rank_config`.
        """
        refuse("create_conversation", unsupported)
        runner = self._new_runner_with(lora_config, drafts=enable_speculative_decoding)
        first = [{"role": "system", "content": system_message}] if system_message else []
        settings = Settings(
            messages=[*first, *(messages or ())],
            extra_context=extra_context or {},
            sampler=sampler_config,
            max_output_tokens=max_output_tokens,
            thinking=thinking_config,
            forgets_channels=filter_channel_content_from_kv_cache is not False,
            chat_template=chat_template,
            tools=tool_map(tools or ()),
            tool_event_handler=tool_event_handler,
            automatic_tool_calling=automatic_tool_calling,
            constrained_decoding_config=constrained_decoding_config,
            lora_config=lora_config,
        )
        renderer = self.text.renderer(chat_template, text_contents)
        return Conversation(
            self.text,
            runner,
            renderer,
            settings,
            init_seconds=self.init_time_in_second,
            contents=self.contents,
            max_num_images=self.max_num_images,
        )

    def generate(
        self,
        prompts: Sequence[str | Sequence[int] | Contents],
        *,
        sampler_config: SamplerConfig | None = None,
        max_output_tokens: int | None = None,
        repetition_penalty_config: RepetitionPenaltyConfig | None = None,
        no_repeat_ngram_config: NoRepeatNgramConfig | None = None,
        suppress_tokens_config: SuppressTokensConfig | None = None,
        log_probabilities: bool = False,
        lora_config: LoraConfig | Sequence[LoraConfig | None] | None = None,
    ) -> list[Completion]:
        """Continue many prompts, `max_batch` at a time; an answer depends on its prompt only.

        Without `batch_invariant` others may change it by rounding.

        Args:
            prompts: texts, before which the start token is added; Contents of texts, images and
                sounds, likewise; or lists of token ids.
            sampler_config: how tokens are chosen; None: as the bundle says, or the most likely one.
            max_output_tokens: of an answer; None: as many as `max_num_tokens` leaves.
            repetition_penalty_config: lowers the logits of tokens that the answer has already.
            no_repeat_ngram_config: forbids repeated n-grams.
            suppress_tokens_config: forbids tokens.
            log_probabilities: whether completions have them.
            lora_config: the LoRA adapter of all prompts, or of each one; None: none.

        Returns:
            A Completion for each prompt, in their order.

        Raises:
            GenerationError: a prompt is empty, too long, or has an unknown token or a damaged file.
            ModelError: an adapter's file is damaged, or not one for the model.
            OptionError: it has images or sounds, and the engine was opened without their backend;
                there are not as many adapters as prompts, or it was opened without
                `lora_rank_config`.
        """
        if isinstance(prompts, str):
            raise TypeError("generate: expected a list of prompts, got a str: pass [prompt]")
        params = self.text.sampling_params(
            sampler_config,
            repetition_penalty_config,
            no_repeat_ngram_config,
            suppress_tokens_config,
        )
        limit = output_limit(max_output_tokens)
        ids = [*map(self._ids, prompts)]
        if not ids:
            return []
        requests = [
            Request(i, limit, params, log_probabilities, adapter=self.adapter(config))
            for i, config in zip(ids, _each(lora_config, len(ids)), strict=True)
        ]
        return generate(self.text, self.new_runner(self._slots_for(len(ids))), requests)

    def hidden_states(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        lora_config: LoraConfig | Sequence[LoraConfig | None] | None = None,
    ) -> np.ndarray:
        """The model's states after prompts, from which it computes the next tokens' logits.

        Some models are trained so that these states are embeddings of texts.

        Args:
            prompts: as for `generate`, without Contents.
            lora_config: as for `generate`.

        Returns:
            float32 [prompts, size], not normalized. A row depends on its prompt only.

        Raises:
            ModelError: as in `generate`.
            OptionError: the model has none: its logits are not the product of one tensor of floats
                and a constant; or about adapters as in `generate`.
            GenerationError: a prompt is empty, too long, or has an unknown token.
        """
        if isinstance(prompts, str):
            raise TypeError("hidden_states: expected a list of prompts, got a str: pass [prompt]")
        size = self.graph.hidden_size
        if not size:
            raise OptionError(f"{printable(self.model_path)}: {NO_HIDDEN_STATES}")
        ids = [self.text.prompt_ids(prompt) for prompt in prompts]
        if not ids:
            return np.empty((0, size), np.float32)
        requests = [
            hidden_state_request(i, self.adapter(config))
            for i, config in zip(ids, _each(lora_config, len(ids)), strict=True)
        ]
        return hidden_states(self.text, self.new_runner(self._slots_for(len(ids))), requests)

    def _ids(self, prompt: str | Sequence[int] | Contents) -> list[int]:
        """The tokens of a prompt, whose images and sounds are encoded then."""
        if not isinstance(prompt, Contents):
            return self.prompt_ids(prompt)
        return [*self.text.start_ids, *self._read(prompt, "generate")]

    def _read(self, contents: Contents, method: str) -> list[int]:
        """The tokens of contents without a template, whose images and sounds are encoded then."""
        encoders = self.contents.encoders
        said = {"role": "user", "content": contents.to_json()}
        message = stated(said, method, encoders)
        for part in message["content"]:
            if part["type"] not in ("text", *encoders):
                kind = part["type"]
                raise OptionError(f"{method}: expected texts, images and sounds, got a {kind!r}")
        files = read_contents([message], self.contents, self.max_num_images)
        text = "".join(
            part["text"] if part["type"] == "text" else encoders[part["type"]].rules.placeholders[0]
            for part in message["content"]
        )
        ids = self.contents.ids(text, files)
        self.contents.encode(files)
        return ids

    def _slots_for(self, prompts: int) -> int:
        return self.max_batch if self.batch_invariant else min(self.max_batch, prompts)

    def prompt_ids(self, prompt: str | Sequence[int]) -> list[int]:
        """The tokens of a prompt; of a text with the start token."""
        return self.text.prompt_ids(prompt)

    def adapter(self, lora_config: LoraConfig | None) -> Adapter | None:
        """A LoRA adapter, read once; None: the configuration names none.

        Raises:
            ModelError: its file is damaged, or not one for the model.
            OptionError: the engine was opened without `lora_rank_config`.
        """
        path = None if lora_config is None else lora_config.path
        if path is None:
            return None
        if not self.graph.adapters:
            raise OptionError(
                f"lora_config: the engine was opened without LoRA, got {path!r}; pass "
                "lora_rank_config=LoraRankConfig(lora_rank=...) to Engine"
            )
        state = version(os.stat(path)) if os.path.exists(path) else None
        return self._adapters.get((path, state), lambda: read_adapter(path, self.graph.adapters))

    def _new_runner_with(
        self, lora_config: LoraConfig | None, *, drafts: bool | None
    ) -> ModelRunner:
        """A runner of one slot, which has an adapter."""
        runner = self.new_runner(1, drafts=drafts)
        runner.adapters.set(0, self.adapter(lora_config))
        return runner

    def new_runner(
        self, slots: int, *, has_stops: bool = True, drafts: bool | None = None
    ) -> ModelRunner:
        """A runner without sequences; without stops it goes on after them."""
        stops = self.text.stops.tokens if has_stops else frozenset[int]()
        # LiteRT-LM fills with the declared token, if the model takes tokens.
        pad = self.text.pad_id if self.graph.decode.tokens is not None else 0
        return ModelRunner(
            self._model,
            slots,
            stops,
            drafts=self._has_drafts(drafts),
            pad=pad,
            is_invariant=self.batch_invariant,
        )

    def new_scheduler(self, slots: int, compiler: BackgroundCompiler | None = None) -> Scheduler:
        """A scheduler of requests whose tokens someone waits for."""
        return Scheduler(self.new_runner(slots), self.text.stops, compiler)

    def new_background_compiler(self) -> BackgroundCompiler:
        """Compiles programs in a thread."""
        return BackgroundCompiler(self._model)

    def _has_drafts(self, asked: bool | None) -> bool:
        """Whether a drafter proposes tokens."""
        is_asked = self.enable_speculative_decoding if asked is None else asked
        if is_asked and self._model.graph.drafter is None:
            raise OptionError(f"enable_speculative_decoding: {self._model.graph.why_no_drafter}")
        if is_asked and self.batch_invariant:
            raise OptionError(
                "enable_speculative_decoding: expected none with batch_invariant, because a "
                "drafter's tokens are checked by another program; leave one of both out"
            )
        return bool(is_asked)

    @property
    def _declared_limit(self) -> int | None:
        limit = self.bundle.metadata.max_num_tokens
        with declaring(self.bundle):
            if limit is not None and limit < 1:
                raise OptionError(f"max_num_tokens: expected at least 0, got {limit}")
        return limit

    def _attention(self) -> Attention:
        if not any(section.type == EXECUTOR_METADATA for section in self.bundle.sections):
            return Attention()
        return declared_attention(self.bundle.executor_metadata())

    def close(self) -> None:
        """Free programs and weights; sessions that exist load them again."""
        self._model.close()
        self.contents.close()

    def __repr__(self) -> str:
        return f"<Engine {self.model_path!r}, {self.max_num_tokens} tokens>"


def _each(
    configs: LoraConfig | Sequence[LoraConfig | None] | None, count: int
) -> Sequence[LoraConfig | None]:
    """The adapter of each of `count` prompts."""
    if configs is None or isinstance(configs, LoraConfig):
        return [configs] * count
    if len(configs) != count:
        raise OptionError(f"lora_config: expected {count}, one a prompt, got {len(configs)}")
    return configs


def engine_with_encoders(path: str | os.PathLike[str], **options: Any) -> Engine:
    """An engine; it takes images and sounds, encoded where the model runs, if the bundle can.

    A warning says what it does without, because parts of the bundle do not fit.
    """
    bundle = open_bundle(path)
    takes = {"vision_backend": takes_images, "audio_backend": takes_sounds}
    names = tuple(name for name, does_take in takes.items() if does_take(bundle))
    for some in dict.fromkeys((names, names[:1], names[1:])):
        if not some:
            continue
        backends: dict[str, Any] = dict.fromkeys(some, Backend())
        try:
            return Engine(path, **backends, **options)
        except (ModelError, OptionError) as error:
            shown = printable(os.fspath(path))
            _LOGGER.warning("%s does without %s: %s", shown, " and ".join(some), error)
    return Engine(path, **options)
