// Runs before the first paint, so that a chosen theme does not flash the other one.
(function () {
  try {
    var theme = localStorage.getItem('handover.theme');
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
  } catch (refused) {
    // Storage may be switched off: the theme of the system is used then.
  }
})();
