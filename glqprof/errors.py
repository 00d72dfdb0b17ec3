"""The one exception that a user is meant to read."""


class InputError(Exception):
    """Unusable input or arguments: the command line prints it as one line and exits with status 2.

    Parameters
    ----------
    subject: what it is about, usually a path or an option as the user wrote it.
    problem: what is wrong with it, and what to do about it.
    """

    def __init__(self, subject: object, problem: str) -> None:
        self.subject = str(subject)
        self.problem = problem
        super().__init__(f"{self.subject}: {problem}")
