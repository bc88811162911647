//! Owns: where a node's settings come from (a file, or the engine's configuration worker, with the arguments over both)
//! and when they are read again: the engine says so, the file changes, or a SIGHUP comes.
//! Never: what a reload does.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::{Config, ConfigError};
use crate::node::Node;
use crate::surface::worker::configuration::{self, Stored};
use crate::surface::worker::control::Control;

/// How often the file is looked at. Editors write in several steps, so a change counts when it is seen twice.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub type Overrides = Box<dyn Fn(Config) -> Result<Config, ConfigError> + Send + Sync>;

/// Where the settings of a node come from.
pub struct Source {
    file: Option<PathBuf>,
    /// The arguments of the program.
    over: Overrides,
    /// The settings as the engine's configuration worker keeps them.
    stored: Option<Arc<Stored>>,
    /// What the file said when it was read last.
    last: Mutex<Option<String>>,
}

impl Source {
    pub fn new(file: Option<PathBuf>, over: Overrides) -> Source {
        Source { file, over, stored: None, last: Mutex::default() }
    }

    /// From now on the engine's configuration worker has the say, if the engine has one. The file is only its seed.
    pub async fn store_at(&mut self, engine: &Arc<Control>) -> Result<(), ConfigError> {
        let seed = self.read_file()?;
        let seed = serde_json::to_value(seed).map_err(|error| ConfigError(error.to_string()))?;
        let stored = configuration::introduce(engine, &Config::schema(), &seed).await.map_err(ConfigError)?;
        if stored.is_some() {
            tracing::info!(id = configuration::ID, "the settings are kept by the engine's configuration worker");
        }
        self.stored = stored;
        Ok(())
    }

    pub async fn read(&self) -> Result<Config, ConfigError> {
        let config = match &self.stored {
            Some(stored) => {
                let value = stored.read().await.map_err(ConfigError)?;
                // JSON is YAML.
                Config::from_yaml(&value.to_string())
                    .map_err(|error| ConfigError(format!("configuration {}: {error}", configuration::ID)))?
            }
            None => self.read_file()?,
        };
        (self.over)(config)
    }

    fn read_file(&self) -> Result<Config, ConfigError> {
        let Some(file) = &self.file else { return Ok(Config::default()) };
        *self.last() = std::fs::read_to_string(file).ok();
        Config::load(file)
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reloads the node whenever its settings may have changed. Never ends.
    pub async fn keep_up(&self, node: &Node) {
        let mut hangups = Hangups::new();
        loop {
            tokio::select! {
                () = self.changed() => {}
                () = hangups.next() => tracing::info!("SIGHUP: reading the configuration again"),
            }
            node.reload().await;
        }
    }

    async fn changed(&self) {
        match (&self.stored, &self.file) {
            (Some(stored), _) => stored.changed().await,
            (None, Some(_)) => self.file_changed().await,
            (None, None) => std::future::pending().await,
        }
    }

    /// A file that is gone for a moment is being replaced; one that is gone for good changes nothing.
    async fn file_changed(&self) {
        let mut seen = None;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(file) = &self.file else { continue };
            let now = tokio::fs::read_to_string(file).await.ok();
            if now.is_some() && now != *self.last() && now == seen {
                return;
            }
            seen = now;
        }
    }
}

/// SIGHUPs of this process, where there are such.
struct Hangups {
    #[cfg(unix)]
    signals: Option<tokio::signal::unix::Signal>,
}

impl Hangups {
    #[cfg(unix)]
    fn new() -> Hangups {
        let signals = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup());
        Hangups { signals: signals.ok() }
    }

    #[cfg(not(unix))]
    fn new() -> Hangups {
        Hangups {}
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        match &mut self.signals {
            Some(signals) => {
                signals.recv().await;
            }
            None => std::future::pending().await,
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        std::future::pending().await
    }
}
