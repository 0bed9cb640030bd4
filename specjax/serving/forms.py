"""The bodies of requests: which fields there are, and of what types."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Tokens = list[Annotated[int, Field(ge=0, lt=2**31)]]
"""Token ids; the model says which of them exist."""


class Form(BaseModel):
    """A body in which nothing is converted and no unknown field passes."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Streaming(Form):
    """What a stream has besides the text."""

    include_usage: bool = False
    include_obfuscation: bool = False  # has no effect: nothing is padded


class JsonSchema(Form):
    """A schema as OpenAI wraps it."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Form):
    """What the text must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Wanted(Form):
    """The fields that both kinds of requests have.

    What is not OpenAI's: top_k, min_p, ignore_eos, json_schema, regex, grammar_after, draft, draft_by, accept, p_min,
    trace and session. The last group has no effect here; clients send it.
    """

    model: str | None = None
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = Field(None, ge=1, lt=2**16)
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: Streaming | None = None
    response_format: ResponseFormat | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    top_k: int | None = None
    min_p: float | None = None
    ignore_eos: bool | None = None
    json_schema: dict[str, Any] | None = None
    regex: str | None = None
    grammar_after: str | None = None
    draft: int | Literal["auto"] | None = None
    draft_by: str | list[str] | None = None
    accept: Literal["rejection", "block", "coupled"] | None = None
    p_min: float | None = None
    trace: bool | None = None
    session: str | None = None

    user: str | None = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None

    @property
    def wanted_logprobs(self) -> int | None:
        """How many alternatives each token's log-probabilities come with; None for no log-probabilities."""
        return None

    logprobs_field: ClassVar[str] = "logprobs"
    """The field that says so."""


def _prompt(given: Any) -> Any:
    """A prompt of one of the four shapes; anything else is one error and not four."""

    def all_of(kind: type, values: Any) -> bool:
        return isinstance(values, list) and all(type(value) is kind for value in values)

    lists = isinstance(given, list) and all(all_of(int, each) for each in given)
    if isinstance(given, str) or all_of(str, given) or all_of(int, given) or lists:
        return given
    raise ValueError("give a text, a list of texts, a list of token ids, or a list of such lists")


class CompletionForm(Wanted):
    """What /v1/completions is asked for."""

    prompt: Annotated[str | list[int] | list[str] | list[list[int]], BeforeValidator(_prompt)]
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0)
    best_of: int | None = None
    suffix: str | None = None

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs


class TextPart(Form):
    """A piece of a message; others than texts are not taken."""

    type: Literal["text"]
    text: str


class FunctionCall(Form):
    """What a call says: arguments are a text in JSON."""

    name: str
    arguments: str


class ToolCall(Form):
    """A call that the model made before."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class MessageForm(BaseModel):
    """A message; fields that answers have and templates do not know are passed over."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class Function(Form):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Form):
    """A tool; all tools are functions."""

    type: Literal["function"]
    function: Function


class NamedFunction(Form):
    """The name of a function that is to be called."""

    name: str


class ToolChoice(Form):
    """A tool that is to be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatForm(Wanted):
    """What /v1/chat/completions is asked for."""

    logprobs_field: ClassVar[str] = "top_logprobs"

    messages: list[MessageForm] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_last: bool | None = None
    reasoning_effort: Any = None

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeForm(Form):
    """A body of /tokenize, as llama.cpp's server takes it."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeForm(Form):
    """A body of /detokenize, as llama.cpp's server takes it."""

    tokens: Tokens
