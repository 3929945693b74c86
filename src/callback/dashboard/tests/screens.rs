//! Whole screens, as people see them.

use super::super::model::{Device, Model};
use super::super::view::View;
use super::lines;
use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;
use std::time::Duration;

#[allow(clippy::unwrap_used, reason = "tests")]
fn shown(model: &Model, view: &View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let draw = |frame: &mut ratatui_core::terminal::Frame<'_>| {
        let free = view.draw(model, frame.area(), frame.buffer_mut());
        assert_eq!(free, free.intersection(frame.area()));
    };
    terminal.draw(draw).unwrap();
    lines(terminal.backend().buffer())
}

fn model() -> Model {
    let mut model = Model {
        title: "mnist".into(),
        stage: "train".into(),
        epoch: 2,
        max_epochs: Some(10),
        batch: 235,
        batches: Some(469),
        global_step: 1173,
        samples_per_second: Some(12345.6),
        elapsed: Duration::from_secs(83),
        eta: Some(Duration::from_secs(252)),
        learning_rates: vec![("all".into(), 0.001)],
        devices: vec![Device {
            name: "cuda:0".into(),
            memory_used: Some(3_200_000_000),
            memory_total: Some(80_000_000_000),
            utilization: Some(0.97),
        }],
        ..Model::default()
    };
    for step in 0..=1173_u32 {
        let loss = 2.0 / (1.0 + f64::from(step) / 200.0);
        model.record("train/loss", step.into(), loss);
    }
    for (step, loss, accuracy) in [(469, 0.7, 0.81), (938, 0.4, 0.92)] {
        model.record("val/loss", step, loss);
        model.record("val/accuracy", step, accuracy);
    }
    for epoch in 1..=2 {
        model.note(&format!("epoch {epoch}/10: 469 batches in 35.1 s"));
    }
    model
}

fn unicode() -> View {
    View::new(true)
}

fn not_finite() -> Model {
    let mut model = Model::default();
    let losses = [1.0, f64::NAN, 2.0, f64::INFINITY, 1.0];
    for (step, loss) in losses.into_iter().enumerate() {
        model.record("train/loss", step as u64, loss);
        model.record("val/f1", step as u64, f64::NAN);
    }
    model
}

#[test]
fn a_screen_of_the_usual_size() {
    #[rustfmt::skip]
    let expected = [
        "mnist  train                             step 1173  12346 samples/s  lr 0.001000",
        "epoch 3/10  ███████████████████░░░░░░░░░░░░░░░░░░░░                      235/469",
        "run         █████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  25 %  0:01:23, 0:04:12 left",
        "────────────────────────────────────────────────────────────────────────────────",
        "  metric        latest       val      best loss  ── train  ── val               ",
        "> loss          0.2913    0.4000    0.4000      2┤⢧                             ",
        "  accuracy           -    0.9200    0.9200       │⠸⡄                            ",
        "                                                 │ ⢳                            ",
        "                                                 │ ⠈⢧                           ",
        "                                            1.241┤  ⠈⢧                          ",
        "                                                 │    ⠳⣄                        ",
        "                                                 │     ⠈⠳⣄                      ",
        "                                                 │       ⠈⠙⠦⣄⡀⠤⣀⡀               ",
        "                                                 │           ⠉⠙⠒⠮⢭⣑⣒⠤⢄⣀⡀        ",
        "                                           0.2913┤                 ⠈⠉⠉⠓⠚⠛⠶⠤⠤⠤⣄⣀⣀",
        "                                                 └──────────────────────────────",
        "                                                  0          step           1173",
        "────────────────────────────────────────────────────────────────────────────────",
        "epoch 1/10: 469 batches in 35.1 s                                               ",
        "epoch 2/10: 469 batches in 35.1 s                                               ",
        "                                                                                ",
        "                                                                                ",
        "cuda:0 3.2/80.0 GB 97 %                                                         ",
        "↑↓ choose a metric   q close the dashboard   Ctrl-C stop the run                ",
    ];
    assert_eq!(shown(&model(), &unicode(), 80, 24), expected);
}

#[test]
fn a_terminal_without_unicode() {
    #[rustfmt::skip]
    let expected = [
        "mnist  train           step 1173  12346 samples/s  lr 0.001000",
        "epoch 3/10  ##########...........                      235/469",
        "run         #####................  25 %  0:01:23, 0:04:12 left",
        "  metric        latest       val loss  .. train  oo val       ",
        "> loss          0.2913    0.4000      2+....                  ",
        "  accuracy           -    0.9200 0.2913+   .....oooooooooo....",
        "                                       +----------------------",
        "                                        0      step       1173",
        "epoch 1/10: 469 batches in 35.1 s                             ",
        "epoch 2/10: 469 batches in 35.1 s                             ",
        "cuda:0 3.2/80.0 GB 97 %                                       ",
        "^v metric   q close   Ctrl-C stop                             ",
    ];
    assert_eq!(shown(&model(), &View::new(false), 62, 12), expected);
}

#[test]
fn a_small_terminal_has_no_chart() {
    #[rustfmt::skip]
    let expected = [
        "mnist  train  step 1173  12346 samples/s",
        "epoch 3/10                       235/469",
        "run          25 %  0:01:23, 0:04:12 left",
        "  metric                latest       val",
        "> loss                  0.2913    0.4000",
        "  accuracy                   -    0.9200",
        "                                        ",
        "                                        ",
        "epoch 1/10: 469 batches in 35.1 s       ",
        "epoch 2/10: 469 batches in 35.1 s       ",
        "cuda:0 3.2/80.0 GB 97 %                 ",
        "↑↓ metric   q close   Ctrl-C stop       ",
    ];
    assert_eq!(shown(&model(), &unicode(), 40, 12), expected);
}

#[test]
fn a_tiny_terminal_has_names_and_values() {
    #[rustfmt::skip]
    let expected = [
        "train     epoch 3/10",
        "█████░░░░░░  235/469",
        "> loss        0.2913",
        "  accuracy    0.9200",
        "                    ",
        "q close             ",
    ];
    assert_eq!(shown(&model(), &unicode(), 20, 6), expected);
}

#[test]
fn a_narrow_one_has_the_chart_below() {
    #[rustfmt::skip]
    let expected = [
        "mnist  train  step 1173  12346 samples/s",
        "epoch 3/10                       235/469",
        "run          25 %  0:01:23, 0:04:12 left",
        "────────────────────────────────────────",
        "  metric                latest       val",
        "> loss                  0.2913    0.4000",
        "  accuracy                   -    0.9200",
        "                                        ",
        "loss  ── train  ── val                  ",
        "     2┤⢳⡀                               ",
        "      │ ⠳⡀                              ",
        " 1.317┤  ⠙⢦⡀                            ",
        "      │    ⠉⠳⢤⣀                         ",
        "      │       ⠈⠉⠓⠲⠤⣄⣒⣢⠤⠤⣀⣀⡀             ",
        "0.2913┤              ⠈⠉⠉⠙⠒⠚⠛⠛⠷⠶⠶⠤⠤⠤⣄⣀⣀⣀⣀",
        "      └─────────────────────────────────",
        "       0            step            1173",
        "────────────────────────────────────────",
        "epoch 1/10: 469 batches in 35.1 s       ",
        "epoch 2/10: 469 batches in 35.1 s       ",
        "                                        ",
        "                                        ",
        "cuda:0 3.2/80.0 GB 97 %                 ",
        "↑↓ metric   q close   Ctrl-C stop       ",
    ];
    assert_eq!(shown(&model(), &unicode(), 40, 24), expected);
}

#[test]
fn nothing_is_known_yet() {
    #[rustfmt::skip]
    let expected = [
        "                                                      step 0",
        "epoch 1                                              batch 0",
        "run                                                  0:00:00",
        "no metrics yet                                              ",
        "                                                            ",
        "                                                            ",
        "                                                            ",
        "                                                            ",
        "                                                            ",
        "↑↓ metric   q close   Ctrl-C stop                           ",
    ];
    assert_eq!(shown(&Model::default(), &unicode(), 60, 10), expected);
}

#[test]
fn without_a_number_of_batches_and_epochs() {
    let mut model = model();
    (model.batches, model.max_epochs, model.eta) = (None, None, None);
    #[rustfmt::skip]
    let expected = [
        "mnist  train         step 1173  12346 samples/s  lr 0.001000",
        "epoch 3                                            batch 235",
        "run                                                  0:01:23",
        "  metric                          latest       val      best",
        "> loss                            0.2913    0.4000    0.4000",
        "  accuracy                             -    0.9200    0.9200",
        "epoch 1/10: 469 batches in 35.1 s                           ",
        "epoch 2/10: 469 batches in 35.1 s                           ",
        "cuda:0 3.2/80.0 GB 97 %                                     ",
        "↑↓ metric   q close   Ctrl-C stop                           ",
    ];
    assert_eq!(shown(&model, &unicode(), 60, 10), expected);
}

#[test]
fn more_batches_than_were_said() {
    let mut model = model();
    (model.batch, model.stop_asked) = (520, true);
    #[rustfmt::skip]
    let expected = [
        "mnist  train  stopping            step 1173  12346 samples/s",
        "epoch 3/10  ███████████████████                     520/469?",
        "run         █████░░░░░░░░░░░░░░  30 %  0:01:23, 0:04:12 left",
        "  metric                          latest       val      best",
        "> loss                            0.2913    0.4000    0.4000",
        "  accuracy                             -    0.9200    0.9200",
        "epoch 1/10: 469 batches in 35.1 s                           ",
        "epoch 2/10: 469 batches in 35.1 s                           ",
        "cuda:0 3.2/80.0 GB 97 %                                     ",
        "stopping after this step   q close the dashboard            ",
    ];
    assert_eq!(shown(&model, &unicode(), 60, 10), expected);
}

#[test]
fn more_batches_than_were_said_on_a_tiny_terminal() {
    let mut model = model();
    (model.batch, model.stop_asked) = (520, true);
    #[rustfmt::skip]
    let expected = [
        "train     epoch 3/10",
        "██████████  520/469?",
        "> loss        0.2913",
        "  accuracy    0.9200",
        "                    ",
        "stopping   q close  ",
    ];
    assert_eq!(shown(&model, &unicode(), 20, 6), expected);
}

#[test]
fn what_is_not_finite_is_counted() {
    let model = not_finite();
    #[rustfmt::skip]
    let expected = [
        "                                                      step 0",
        "epoch 1                                              batch 0",
        "run                                                  0:00:00",
        "  metric        latest       val loss  ── train  2 NaN/inf  ",
        "> loss               1         - 2┤         ⣀⠤⠒⠉⠑⠢⢄⡀        ",
        "  f1                 -       NaN  │    ⣀⡠⠔⠊⠉       ⠈⠑⠢⠤⣀    ",
        "                                 1┤⣀⠤⠒⠉                 ⠉⠒⠤⣀",
        "                                  └─────────────────────────",
        "                                   0         step          4",
        "                                                            ",
        "                                                            ",
        "↑↓ metric   q close   Ctrl-C stop                           ",
    ];
    assert_eq!(shown(&model, &unicode(), 60, 12), expected);
}

#[test]
fn a_metric_without_any_finite_value() {
    let model = not_finite();
    let mut view = unicode();
    view.next(&model);
    #[rustfmt::skip]
    let expected = [
        "                                                      step 0",
        "epoch 1                                              batch 0",
        "run                                                  0:00:00",
        "  metric        latest       val f1  ── val  5 NaN/inf      ",
        "  loss               1         - no finite values yet       ",
        "> f1                 -       NaN                            ",
        "                                                            ",
        "                                                            ",
        "                                                            ",
        "                                                            ",
        "                                                            ",
        "↑↓ metric   q close   Ctrl-C stop                           ",
    ];
    assert_eq!(shown(&model, &view, 60, 12), expected);
}

#[test]
fn the_list_follows_the_chosen_metric() {
    let mut model = Model::default();
    (0..6).for_each(|i| model.record(&format!("test/name_{i}"), 1, f64::from(i)));
    let mut view = unicode();
    view.previous(&model);
    view.previous(&model);
    #[rustfmt::skip]
    let expected = [
        "             epoch 1",
        "             batch 0",
        "  test/na…         2",
        "  test/na…         3",
        "> test/na…         4",
        "q close             ",
    ];
    assert_eq!(shown(&model, &view, 20, 6), expected);
}

#[test]
fn a_title_of_wide_and_control_characters() {
    let mut model = model();
    model.title = "日本\u{1b}[31m, a title that fits nowhere at all".to_owned();
    #[rustfmt::skip]
    let expected = [
        "日 本 [31m, a title that …  train                   epoch 3/10",
        "██████████████░░░░░░░░░░░░░░  235/469  0:01:23, 0:04:12 left",
        "  metric                          latest       val      best",
        "> loss                            0.2913    0.4000    0.4000",
        "  accuracy                             -    0.9200    0.9200",
        "↑↓ metric   q close   Ctrl-C stop                           ",
    ];
    assert_eq!(shown(&model, &unicode(), 60, 6), expected);
}

#[test]
fn choosing_goes_around_and_needs_no_metric() {
    let chosen = |view: &View, model: &Model| {
        let lines = shown(model, view, 20, 6);
        lines.into_iter().find(|line| line.starts_with('>'))
    };
    let (mut view, empty, model) = (unicode(), Model::default(), model());
    view.next(&empty);
    view.previous(&empty);
    view.previous(&empty);
    assert_eq!(chosen(&view, &empty), None);
    let names = ["loss", "accuracy"];
    for (name, go) in [
        (names[0], None),
        (names[1], Some(View::next as fn(&mut View, &Model))),
        (names[0], Some(View::next)),
        (names[1], Some(View::previous)),
        (names[0], Some(View::previous)),
    ] {
        if let Some(go) = go {
            go(&mut view, &model);
        }
        let line = chosen(&view, &model).unwrap_or_default();
        assert!(line.contains(name), "{line} has no {name}");
    }
}

#[test]
fn no_size_is_too_small_or_too_large() {
    let models = [Model::default(), model(), not_finite()];
    for (width, height) in (0..70)
        .step_by(3)
        .flat_map(|w| (0..30).map(move |h| (w, h)))
    {
        for model in &models {
            shown(model, &unicode(), width, height);
        }
    }
    shown(&models[1], &unicode(), 500, 120);
}
