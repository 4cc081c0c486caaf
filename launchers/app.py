"""All commands of `maskwright`, assembled."""

import typer

from launchers.commands import (
    analyze,
    checkpoints,
    collocations,
    dataset,
    demo,
    doctor,
    evaluate,
    finetune,
    generate,
    launch,
    launch_hosts,
    launch_list,
    launch_prep,
    logs,
    mask,
    plan,
    prep,
    replay,
    report,
    run,
    status,
    study,
    tokenizer,
    track,
)

app = typer.Typer(
    name="maskwright",
    help="Pretrain masked-language-model encoders, from raw text to a Hugging Face model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(tokenizer.tokenizer_app, name="tokenizer")
for finished in (dataset.info, dataset.show, dataset.verify, collocations.collocations):
    prep.prep_app.command()(finished)
app.add_typer(prep.prep_app, name="prep")
watching = (status.status, logs.logs, report.report, checkpoints.checkpoints, replay.replay)
results = (run.export, evaluate.evaluate, finetune.finetune, generate.generate)
for command in (demo.demo, doctor.doctor, plan.plan, run.train, status.stop, *watching, *results):
    app.command()(command)
app.add_typer(mask.mask_app, name="mask")
app.add_typer(analyze.analyze_app, name="analyze")
app.add_typer(study.study_app, name="study")
app.add_typer(track.track_app, name="track")
launch.launch_app.command()(launch_prep.prep)
launch.launch_app.command("list")(launch_list.list_runs)
launch.launch_app.command()(launch_hosts.hosts)
app.add_typer(launch.launch_app, name="launch")
