"""Every command of `flatout`: its name, where it is, and one line of help. A new command is a new line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A command whose module is imported only when it runs."""

    target: str
    """"package.module:name" of a function or of a `typer.Typer` with commands of its own."""
    help: str


COMMANDS: dict[str, Command] = {
    "demo": Command("flatout.cli.demo_command:demo", "See it all on data it makes, in half a minute."),
    "prepare": Command("flatout.cli.prepare_command:prepare", "Raw files in, a store out; continues, updates."),
    "verify": Command("flatout.cli.verify_command:verify_store", "Check every byte of a store; repair it."),
    "stats": Command("flatout.cli.stats_command:stats", "What is in a store, a manifest or a folder."),
    "export": Command("flatout.cli.export_command:export", "Write a store in another tool's format."),
    "train": Command("flatout.cli.train_command:train", "Train; reads the store if there is one."),
    "doctor": Command("flatout.cli.doctor_command:app", "Why is my training slow, and what would fix it."),
    "tune": Command("flatout.cli.tune_command:tune", "Find the loader settings that are fastest here."),
    "report": Command("flatout.cli.report_command:report", "A page of a run, or of what the doctor saw."),
    "compare": Command("flatout.cli.compare_command:compare_records", "Two runs side by side."),
    "dashboard": Command("flatout.cli.dashboard_command:dashboard", "Follow a run in the browser."),
    "precompute-views": Command(
        "flatout.cli.precompute_command:precompute_views", "Augmented views of every sample, made once."
    ),
    "precompute-embeddings": Command(
        "flatout.cli.embeddings_command:precompute_embeddings", "A frozen encoder's outputs as a field."
    ),
    "augment-preview": Command(
        "flatout.cli.preview_command:augment_preview", "Look at what the augmentation's settings do."
    ),
    "bench": Command("flatout.cli.bench_command:app", "Measure flatout on this machine, against peers too."),
    "config": Command("flatout.cli.config_command:config", "Print the resolved config, or its schema."),
    "presets": Command("flatout.cli.presets_command:presets", "List the presets, or print one."),
}
