"""Telling and checking at once: what the demo prints, and what it ends with."""

from __future__ import annotations

from collections.abc import Callable


class Story:
    """Prints what happens, and keeps count of what was claimed and not seen."""

    def __init__(self) -> None:
        self.claims = 0
        self.unseen: list[str] = []
        self._title = ""

    def title(self, text: str) -> None:
        self._title = text
        print(f"\n{text}\n{'-' * len(text)}", flush=True)

    def say(self, text: str) -> None:
        print(f"   {text}", flush=True)

    def claim(self, text: str, seen: bool, found: object = "") -> None:
        """State something that should hold. Where it does not, ``found`` tells what there was instead."""
        self.claims += 1
        if seen:
            print(f"   [ok] {text}", flush=True)
        else:
            print(f"   [NOT SEEN] {text}; found: {found}", flush=True)
            self.unseen.append(f"{self._title}: {text}; found: {found}")

    def tell(self, title: str, scene: Callable[[], None]) -> None:
        """One scene. What it stumbles over counts as something not seen; the next one is still shown."""
        self.title(title)
        try:
            scene()
        except Exception as error:  # noqa: BLE001
            self.claim("the scene runs to its end", seen=False, found=f"{type(error).__name__}: {error}")

    def end(self) -> bool:
        """Sum up. True if everything that was claimed was seen."""
        self.title("The end")
        for line in self.unseen:
            self.say(f"not seen: {line}")
        self.say(f"{self.claims - len(self.unseen)} of {self.claims} claims were seen.")
        return not self.unseen
