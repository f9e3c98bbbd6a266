pub(super) fn run(_: &'static str) {}
