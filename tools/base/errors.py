"""The one exception type of the tools: what went wrong, and what to do next."""

from tools.base.outcome import Outcome


class ToolError(Exception):
    """A failure that the user can understand and mend.

    Args:
        outcome: Its kind; sets the exit code.
        message: One line that says what is wrong, with the names involved.
        next_steps: Commands or actions that mend it, most likely first.
        details: Further lines, for example expected and found context.
    """

    def __init__(
        self,
        outcome: Outcome,
        message: str,
        next_steps: tuple[str, ...] = (),
        details: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.next_steps = next_steps
        self.details = details
