"""Refused configs: unknown keys, wrong values, and settings that do not fit together."""

import pytest

from pretrain.config_files import load_config
from tests.support.configs import LEAST, refusal


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("trian.steps=5", "Unknown key trian. Did you mean train?"),
        ("train.step=5", "Unknown key train.step. Did you mean train.steps?"),
        ("optim.zz=1", "Unknown key optim.zz. The keys of optim are name, lr, betas, eps,"),
        ("train.learning_rate=1", "Unknown key train.learning_rate. Did you mean optim.lr?"),
        ("train.seq_len=64", "Unknown key train.seq_len. Did you mean data.seq_len?"),
        ("seed=1", "Unknown key seed. Did you mean run.seed?"),
        ("train.batch_size=8", "Unknown key train.batch_size. Did you mean train.global_batch_size?"),
        ("masking.replacement.masks=0.5", "Did you mean masking.replacement.mask?"),
        ("model.size={layers: 2, hidden: 32, head: 2, heads: 2}", "Did you mean model.size.heads?"),
        ("optim={name: muon, muon: {momentun: 0.9}}", "Did you mean optim.muon.momentum?"),
        ("wandb=x", "Unknown key wandb. The keys of the config are run, data, objective,"),
        ("train.steps=ten", "train.steps must be a whole number, not 'ten'."),
        ("train.steps=1.5", "train.steps must be a whole number, not 1.5."),
        ("train.steps=true", "train.steps must be a number, not true."),
        ("train={tokens: 0}", "train.tokens must be 1 or more, not 0."),
        ("train.steps.more=3", "train.steps must be a whole number, not a section of keys."),
        ("train.precision=fp8", "train.precision must be bf16, fp16 or fp32, not 'fp8'."),
        ("optim.lr=.nan", "optim.lr must be a finite number, not nan."),
        ("data.train=[]", "data.train must be a path, or a list of paths or of {path, weight}, not an empty list."),
        ("data.train=[{path: a, weight: 1, epochs: 1}]", "give 'a' either weight or epochs"),
        ("data.train=[{path: a, weight: 1}, {path: b, epochs: 1}]", "give every source a weight, or none"),
        ("data={train: [a, b], temperature: 0.3}", "If you mean an exponent of 0.3, write 3.33."),
        (
            "data={train: [{path: a, sources: {en: 1}}], temperature: 2}",
            "Leave out weight, epochs and sources in train",
        ),
        ("data={train: [{path: a, sources: {en: 0}}]}", "give a source of 'a' a weight above 0"),
        ("data={train: [{path: a, weight: 1}, {path: b, weight: 2}], temperature: 2}", "Leave out weight"),
        ("data={train: [{path: a, epochs: 1}, b], temperature: 2}", "Leave out weight"),
        ("data.train=[{path: a, weight: 0}]", "data.train.0.weight must be more than 0, not 0."),
        ("data.train=[{path: a, wieght: 1}]", "Unknown key data.train.0.wieght. Did you mean data.train.0.weight?"),
        ("masking.rate={schedule: linear, start: 0.3}", "masking.rate.end is missing"),
        ("masking.rate={schedule: linear, start: 1.3, end: 0.1}", "masking.rate.start must be less than 1, not 1.3."),
        ("masking.rate=high", "masking.rate must be a number, not 'high'."),
        ("optim.betas=0.9", "optim.betas must be a list, not 0.9. Write it in brackets: [0.9]."),
        ("optim.name=adam", "optim.name must be adamw, lamb, stable_adamw or muon, not 'adam'. Did you mean adamw?"),
        ("optim.betas=[0.9]", "optim.betas must be a list of 2 values, not 1."),
        ("optim.betas=[0.9, 1.5]", "optim.betas.1 must be less than 1, not 1.5."),
        ("zero.stage=4", "zero.stage must be 0, 1, 2 or 3, not 4."),
        ("run.allow_changes=perhaps", "run.allow_changes must be true or false, not 'perhaps'."),
        ("run.seed=-1", "run.seed must be 0 or more, not -1."),
        ("run.dir=s3://bucket/run", "run.dir: s3://bucket/run is a URL; name a local folder, and copies go to"),
        ("model.size=huge", "size 'huge' is no preset; write one of tiny, mini, small, base, large, 1b"),
        ("model.size.layers=2", "model.size.hidden is missing"),
        ("masking=", "masking must be a section of keys, but it is empty. Add keys below it, or remove it."),
        ("deepspeed=[1]", "deepspeed must be a section of keys, not a list."),
        ("masking.rate=15%", "masking.rate must be a number, not '15%'. Write 0.15."),
        ("masking.rate=15", "masking.rate must be less than 1, not 15. For 15 percent, write 0.15."),
        ("masking.rate='0,15'", "masking.rate must be a number, not '0,15'. Write 0.15."),
        ("train.steps=1,000", "train.steps must be a whole number, not '1,000'. Write 1000."),
        ("train.steps='1e3'", "train.steps must be a whole number, not '1e3'. Write 1000."),
        ("train.steps='\"5\"'", "Write 5."),
        ("train.steps=[5]", "train.steps must be a whole number, not a list. Write 5 without brackets."),
        ("train.steps=2024-01-31", "train.steps must be a whole number, not 2024-01-31."),
        (
            "train.precision=[bf16]",
            "train.precision must be bf16, fp16 or fp32, not a list. Write bf16 without brackets.",
        ),
        ("train.precision=BF16", "not 'BF16'. Did you mean bf16?"),
        ("train.compile=ture", "train.compile must be auto, true or false, not 'ture'. Did you mean true?"),
        ("zero.offload=no", "zero.offload must be none or cpu, not false. Did you mean none?"),
        ("cluster.modules=cuda", "cluster.modules must be a list, not 'cuda'. Write it in brackets: [cuda]."),
        ("masking.strategy={tokn: 1}", "A key of masking.strategy must be token, whole_word or span"),
        ("cluster.account=''", "cluster.account must not be empty."),
        ("=5", "'=5' is not KEY=VALUE."),
        ("train..steps=5", "'train..steps=5' is not KEY=VALUE."),
        (".steps=5", "'.steps=5' is not KEY=VALUE."),
        ("train.steps=2024-02-31", "override 'train.steps=2024-02-31': a date or number in it cannot be read"),
        ("train.steps", "'train.steps' is not KEY=VALUE. Write it without spaces, for example train.steps=100."),
        ("other.yaml", "'other.yaml' is a second config file. Name one; change keys with KEY=VALUE."),
        ("a://me:hunter2@db.yaml", "'a://***@db.yaml' is a second config file."),
        (f"track.uri=[a://me:{'x' * 60}@b", "override 'track.uri=[a://***@b'"),
        ("train.steps=[1", "override 'train.steps=[1': line 1 is not valid YAML: a bracket or brace is not closed."),
    ],
)
def test_an_override_that_cannot_be_says_what_to_write(write, override, wanted):
    message = refusal(write(LEAST), override)
    assert wanted in message
    assert len(message) <= 300 + len(str(write(LEAST)))


@pytest.mark.parametrize(
    ("file", "overrides", "place"),
    [
        ({}, ["train.stepz=3"], "override train.stepz"),
        ({}, ["run.seed=1", "train.steps=ten"], "override train.steps"),
        ({}, ["train={steps: 1, stepz: 3}"], "override train"),
        ({}, ["train.micro_batch_size=3", "run.seed=1"], "override train.micro_batch_size"),
        ({"phases": [{"name": "a", "steps": 5}]}, ["phases.a.stepz=3"], "override phases.a.stepz"),
        ({"train": {"stepz": 10}}, ["train.steps=3"], "FILE"),
        ({"optim": {"lr": -1}}, ["optim.name=lamb"], "FILE"),
        ({}, ["train={steps: 9}", "train.steps=no"], "override train.steps"),
        ({}, ["track.uri=none", "track.uri.x=3"], "override track.uri.x"),
        ({"masking": {"span": {"p": 7}}}, ["masking.span.max_words=3"], "FILE"),
    ],
)
def test_a_mistake_is_found_in_the_override_or_in_the_file(write, file, overrides, place):
    path = write(LEAST | file)
    assert refusal(path, *overrides).startswith(f"{place.replace('FILE', str(path))}: ")


@pytest.mark.parametrize("name", ["run.dir", "data.train", "train.steps"])
def test_missing_required_key_is_named(write, name):
    section, key = name.split(".")
    values = {**LEAST, section: {k: v for k, v in LEAST[section].items() if k != key}}
    assert f"{name} is missing; add it to the config" in refusal(write(values))


def test_an_unknown_key_of_any_form_gives_one_short_line(write):
    assert r"Unknown key 'a\x1b\nb'. The keys of the config are" in refusal(write(LEAST | {"a\x1b\nb": 1}))
    assert len(refusal(write(LEAST | {"x" * 500: 1}))) <= 300 + len(str(write(LEAST)))
    repeated = "x" * 500
    assert len(refusal(write(f"{repeated}: 1\n{repeated}: 2\n"))) <= 300 + len(str(write(LEAST)))


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"train": {"stpes": 5}}, "Unknown key train.stpes. Did you mean train.steps?"),
        ({"run": {"dri": "x"}, "train": {"steps": "ten"}}, "Unknown key run.dri. Did you mean run.dir?"),
        ({"train": {"steps": 5, "zloss": 0}, "run": {}}, "Unknown key train.zloss. Did you mean train.z_loss?"),
    ],
)
def test_a_misspelt_required_key_is_not_reported_as_missing(write, change, wanted):
    assert wanted in refusal(write(LEAST | change))


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["train.micro_batch_size=5"], "train.global_batch_size (32) must be a multiple of train.micro_batch_size (5)"),
        (["zero.stage=2", "zero.overlap=false"], "overlap is for stage 1 without offload; remove it"),
        (["zero.stage=0"], "zero.stage 0 is for train.precision fp32; write zero.stage 1 for bf16"),
        (["zero={stage: 0, offload: cpu}", "train.precision=fp32"], "zero: offload needs the optimizer state of"),
        (["schedule={kind: cosine, decay: 1-sqrt}"], "schedule: decay is for kind wsd, not cosine; remove it"),
        (["schedule={kind: constant, min_ratio: 0.1}"], "schedule: min_ratio is for rates that fall"),
        (["model.max_positions=64"], "model.max_positions (64) must be at least the longest data.seq_len (128)"),
        (["masking.replacement={mask: 0.8, random: 0.3}"], "mask + random is 1.1; the two shares may add up to 1"),
        (["model.size={layers: 2, hidden: 33, heads: 2}"], "hidden (33) must be a multiple of heads (2)"),
        (["masking.span.p=0.5", "masking.strategy=whole_word"], "masking: span is for strategy span"),
        (
            ["phases=[{name: a, steps: 5}, {name: b, steps: 5, objective: {kind: mlm}}]"],
            "phases.1.objective: it must be one name such as mlm, or a list of {kind, share}",
        ),
        (["phases=[{name: a, steps: 5}, {name: b, steps: 5, objective: 3}]"], "objective must be clm, diffusion, mlm"),
        (["objective=clm", "eval.masks=common"], "eval.masks common is for objective mlm, not clm; set it to own"),
        (["objective=clm", "masking.rate=0.3"], "masking.rate is not read by objective clm; remove it"),
        (["objective=repair", "masking.selection.unmarked=2"], "masking.selection is not read by objective repair"),
        (["objective=repair", "masking.replacement.mask=0.5"], "masking.replacement is not read by objective repair"),
        (["objective=diffusion", "masking.rate=0.3"], "masking.rate is not read by objective diffusion"),
        (["objective=prefix", "masking.rate=0.3"], "masking.rate is not read by objective prefix"),
        (
            ["objective=[{kind: mlm, share: 0.5}, {kind: clm, share: 0.25}]"],
            "the shares of objective at the first step add up to 0.75; make them 1",
        ),
        (
            ["objective=[{kind: mlm, share: 0.5}, {kind: mlm, share: 0.5}]"],
            "objective has mlm twice; give it one share",
        ),
        (["objective=[{kind: mlm, share: 1}, {kind: clm, share: 0}]"], "share of clm is 0; remove it from the list"),
        (
            [
                "objective=[{kind: mlm, share: {schedule: linear, start: 0.5, end: 1}}, "
                "{kind: clm, share: {schedule: cosine, start: 0.5, end: 0}}]"
            ],
            "the shares of objective change by two schedules",
        ),
        (["objective=[{kind: mlm, share: 1, weight: 2}]"], "objective has a weight for mlm alone"),
        (["optim.muon.momentum=0.9"], "optim: muon has settings of name muon, which adamw does not read; remove them"),
        (["model.arch=auto"], "arch auto and config go together"),
        (["model={arch: auto, config: x, init: y}"], "init is for the native encoder"),
        (["model={arch: auto, config: x, max_positions: 512}"], "max_positions comes from model.config with arch auto"),
        (["model={arch: auto, config: x}", "train.fused_kernels=true"], "fused_kernels is for the native encoder"),
        (
            ["train.flash_attention=3", "train.precision=fp32"],
            "flash_attention 3 is for train.precision bf16 and fp16, not fp32",
        ),
        (["train.flash_attention=4", "model.dropout=0.1"], "flash_attention 4 is for model.dropout 0; remove it"),
        (["train.flash_attention=3", "run.deterministic=true"], "gives other gradients from run to run"),
        (["train.flash_attention=1"], "train.flash_attention"),
        (["zero.stage=3", "train.compile=true"], "compile is for zero.stage 0 to 2"),
        (
            ["model.global_rope_theta=10000"],
            "global_rope_theta is for arch modernbert, eurobert, esm, not bert; remove",
        ),
        (["model={arch: eurobert, local_attention: 64}"], "local_attention is for arch modernbert, not eurobert"),
        (["model={arch: esm, dropout: 0.1}"], "dropout is for arch bert, roberta, modernbert, not esm; remove it"),
        (["model={arch: eurobert, size: base}"], "size 'base' is no preset; write one of tiny, mini, 210m, 610m, 2.1b"),
        (["model.size={layers: 2, hidden: 32, heads: 4, kv_heads: 2}"], "size.kv_heads is for arch eurobert, not bert"),
        (
            ["model={arch: eurobert, size: {layers: 2, hidden: 32, heads: 4, kv_heads: 3}}"],
            "heads (4) must be a multiple of kv_heads (3)",
        ),
        (["model.arch=esm", "objective=clm"], "objective clm needs model.arch bert, roberta or modernbert, not esm"),
        (["model={arch: modernbert, local_attention: 63}"], "local_attention must be a multiple of 2, not 63."),
        (["model={arch: modernbert, scaled_init: true}"], "scaled_init is for arch bert, roberta, eurobert, esm"),
        (["model={scaled_init: true, init: y}"], "scaled_init is for random weights, and init gives others"),
        (["model.init_vocabulary=pieces"], "init_vocabulary is for weights of init, which is not set; remove it"),
        (
            ["model={arch: eurobert, init: x, init_size: tile}"],
            "init_size tile is for arch bert, roberta, modernbert, not eurobert",
        ),
        (["guard={rollback: true, spike_threshold: 0}"], "rollback needs spikes to be looked for; set guard.spike_thr"),
        (["guard.rollback=true", "checkpoint.keep=1"], "guard.rollback needs a checkpoint from before the spike; set"),
        (["train.profile.steps=[0, 2]"], "train.profile: steps [0, 2] must be a first step"),
        (["train.profile.steps=[1, 101]", "train.steps=200"], "steps [1, 101] are 101, whose traces would fill memory"),
        (["train.profile.steps=[5, 11]"], "train: profile.steps [5, 11] end after the last step (10)"),
        (["train.profile={}"], "train.profile.steps is missing"),
        (["track.system_seconds=0.01"], "track.system_seconds: 0.01 s is too short to measure a rate"),
        (["guard.slow_factor=0.9"], "slow_factor 0.9 would make every rank slow; write more than 1, or 0 for none"),
        (["checkpoint.keep_every=1500"], "checkpoint.keep_every (1500) must be a multiple of checkpoint.every_steps"),
        (["checkpoint.remote=bucket/run"], "'bucket/run' is not a URL like s3://bucket/run"),
        (["checkpoint.remote=s3://me:secret@host/run"], "passwords and tokens do not belong in a config"),
        (["objective=clm", "track.models=last"], "track.models is for models that fill masks"),
        (["track.uri=http://me:secret@host"], "passwords and tokens do not belong in a config"),
    ],
)
def test_cross_checks(write, overrides, wanted):
    message = refusal(write(LEAST), *overrides)
    assert wanted in message
    assert "secret" not in message


def test_a_rate_that_selects_nothing_of_a_row(write):
    """k would be 0 in every row: no error, and no learning."""
    short = "data.seq_len=8"
    wanted = "masking.rate 0.08 is less than half a token of a row of 8 slots, so nothing would be predicted; raise it"
    assert f"{wanted} to 0.084 at least" in refusal(write(LEAST), short, "masking.rate=0.08")
    load_config(write(LEAST), [short, "masking.rate=0.084"])
    falling = "masking.rate={schedule: linear, start: 0.3, end: 0.08}"
    assert wanted in refusal(write(LEAST), short, falling)
    phases = "phases=[{name: a, steps: 2}, {name: b, steps: 8, data: {seq_len: 8}}]"
    assert "masking.rate 0.08 is less than half a token" in refusal(write(LEAST), "data.seq_len=64", falling, phases)
    load_config(write(LEAST), [short, "masking.rate=0.08", "objective=repair"])
