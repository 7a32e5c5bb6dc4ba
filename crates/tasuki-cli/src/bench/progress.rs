//! Progress bar of a benchmark on stderr; it is hidden if stderr is not a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar that is removed when it is dropped.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Shows a bar with label `what` at position 0 of `len`.
    pub(crate) fn new(what: &str, len: u64) -> Self {
        let progress = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{msg} {progress:40} {pos}/{len}") {
            progress.set_style(style);
        }
        progress.set_message(what.to_owned());
        Self(progress)
    }

    pub(crate) fn set(&self, position: u64) {
        self.0.set_position(position);
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.inc(count);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
