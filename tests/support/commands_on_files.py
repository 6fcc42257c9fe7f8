"""Commands that read, write and name files, for tests of what they print."""

from __future__ import annotations


def commands_on(enriched, dump, plain, out):
    """Return the commands on an enriched file, a dump and rollouts, and the exit code of each."""
    json_ = ("--format", "json")
    return [
        (("inspect", enriched), 0),
        (("inspect", enriched, *json_), 0),
        (("inspect", plain, "--format", "markdown"), 0),
        (("inspect", dump, *json_), 0),
        (("inspect", enriched, "--row", "0"), 0),
        (("advantages", plain, out / "a.parquet", "--summary-json", out / "a.json"), 0),
        (("advantages", dump, out / "d.parquet", "--summary-json", "-"), 0),
        (("advantages", enriched, out / "u.parquet", "--skip-existing", "--replace"), 0),
        (("advantages", plain, "--plan"), 0),
        (("verify", enriched, *json_), 0),
        (("compare", enriched, enriched, *json_), 0),
        (("compare", plain, "--estimator", "grpo", "--estimator", "rloo", *json_), 0),
        (("replay", enriched, "--preset", "verl", *json_), 0),
        (("replay", enriched), 0),
        (("report", enriched, out / "r.html"), 0),
        (("loss", plain, out / "l.parquet", "--map", "log_probs=ref_log_probs"), 0),
        (("convert", dump, out / "c.parquet", *json_), 0),
        (("export", plain, out / "e.jsonl", "--to", "jsonl", *json_), 0),
    ]
