//! Owns: the signals that stop a process (SIGTERM, Ctrl-C) or reload its configuration (SIGHUP).

#[cfg(unix)]
pub async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(error) => {
            tracing::warn!(%error, "SIGTERM cannot be caught; Ctrl-C still stops the process");
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}

#[cfg(not(unix))]
pub async fn wait_for_signal() {
    let _ = tokio::signal::ctrl_c().await;
}

/// The SIGHUPs of this process. Never yields on systems without that signal.
pub struct Hangups {
    #[cfg(unix)]
    signals: Option<tokio::signal::unix::Signal>,
}

impl Hangups {
    #[cfg(unix)]
    pub fn new() -> Hangups {
        let signals = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup());
        Hangups { signals: signals.ok() }
    }

    #[cfg(not(unix))]
    pub fn new() -> Hangups {
        Hangups {}
    }

    #[cfg(unix)]
    pub async fn next(&mut self) {
        match &mut self.signals {
            Some(signals) => {
                signals.recv().await;
            }
            None => std::future::pending().await,
        }
    }

    #[cfg(not(unix))]
    pub async fn next(&mut self) {
        std::future::pending().await
    }
}
