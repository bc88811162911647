//! Owns: where a node's settings come from (a file or the engine's configuration worker, both overridden by arguments),
//! and when to reload them: the engine reports a change, the file changes, or SIGHUP arrives.
//! Never: what a reload does.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::signals::Hangups;
use crate::config::{Config, ConfigError};
use crate::node::Node;
use crate::surface::engine::configuration::{self, StoredSettings};
use crate::surface::engine::control::ControlConnection;

/// How often the file is read. Editors write in several steps, so a change counts once two reads in a row agree.
const POLL_EVERY: Duration = Duration::from_millis(500);

pub type Overrides = Box<dyn Fn(Config) -> Result<Config, ConfigError> + Send + Sync>;

pub struct Source {
    file: Option<PathBuf>,
    /// Applies the arguments of the program.
    overrides: Overrides,
    /// The settings in the engine's configuration worker. If set, they replace the file.
    stored: Option<Arc<StoredSettings>>,
    /// The text of the file when it was last read.
    last: Mutex<Option<String>>,
}

impl Source {
    pub fn new(file: Option<PathBuf>, overrides: Overrides) -> Source {
        Source { file, overrides, stored: None, last: Mutex::default() }
    }

    /// Switches to the engine's configuration worker, if the engine has one. The file only provides its first value.
    pub async fn use_engine(&mut self, engine: &Arc<ControlConnection>) -> Result<(), ConfigError> {
        let seed = self.read_file()?;
        seed.validate().map_err(|error| self.in_file(error))?;
        let engine_error = |why: String| ConfigError::Engine { id: configuration::ID, why };
        let seed = serde_json::to_value(seed).map_err(|error| engine_error(error.to_string()))?;
        let stored = configuration::register(engine, &Config::schema(), &seed).await;
        self.stored = stored.map_err(|error| engine_error(error.to_string()))?;
        if self.stored.is_some() {
            tracing::info!(id = configuration::ID, "settings come from the engine's configuration worker");
        }
        Ok(())
    }

    pub async fn read(&self) -> Result<Config, ConfigError> {
        let config = match &self.stored {
            Some(stored) => {
                let value = stored.read().await;
                let value =
                    value.map_err(|error| ConfigError::Engine { id: configuration::ID, why: error.to_string() })?;
                // Every JSON text is YAML.
                Config::from_yaml(&value.to_string()).map_err(|error| error.in_document(configuration::ID))?
            }
            None => self.read_file()?,
        };
        // Arguments may complete a file that is not valid alone. If nothing has changed with them, the file is at fault.
        let alone = config.validate().err();
        (self.overrides)(config).map_err(|error| match alone == Some(error.clone()) {
            true => self.in_file(error),
            false => error,
        })
    }

    fn in_file(&self, error: ConfigError) -> ConfigError {
        match &self.file {
            Some(file) => error.in_document(file.display()),
            None => error,
        }
    }

    fn read_file(&self) -> Result<Config, ConfigError> {
        let Some(file) = &self.file else { return Ok(Config::default()) };
        *self.last() = std::fs::read_to_string(file).ok();
        Config::read(file)
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reloads the node whenever its settings may have changed. Never returns.
    pub async fn reload_on_change(&self, node: &Node) {
        let mut hangups = Hangups::new();
        loop {
            tokio::select! {
                () = self.changed() => {}
                () = hangups.next() => tracing::info!("SIGHUP: reloading the configuration"),
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

    /// Returns when the file has new text. A missing file is no change: an editor may be replacing it.
    async fn file_changed(&self) {
        let mut seen = None;
        loop {
            tokio::time::sleep(POLL_EVERY).await;
            let Some(file) = &self.file else { continue };
            let now = tokio::fs::read_to_string(file).await.ok();
            if now.is_some() && now != *self.last() && now == seen {
                return;
            }
            seen = now;
        }
    }
}
