//! Owns: `session-manager token`: makes tokens for the token file of a node.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::error::CliError;
use crate::access::Role;
use crate::access::credentials::now_ms;
use crate::access::token::{self, TokenHash};
use crate::access::token_file::Line;
use crate::machine::scope::Scope;
use crate::machine::toolpath::time;

const EXAMPLES: &str = "\
Examples:
  session-manager token create --role app --name web
  session-manager token create --role app --scope owner=u_1 --expires 90d
  session-manager token create --role reader --name dashboard >> /etc/session-manager/tokens

The token is printed on stderr, once; only its hash is stored. The line for the token file is printed on stdout. A node \
reads the file with `serve --token-file FILE` and again whenever it changes. Delete a line to revoke its token.";

/// Make tokens for callers of a node
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Print a new token, and the line for the token file
    #[command(after_help = EXAMPLES)]
    Create(CreateArgs),
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// What the caller may do
    #[arg(long, value_enum)]
    role: Role,

    /// Name of the caller in logs and errors [default: the role]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// The caller sees only sessions whose metadata has this value; repeat the flag for several keys
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    scope: Vec<(String, String)>,

    /// When the token expires: a number of days (90d), hours (12h) or minutes (30m) [default: never]
    #[arg(long, value_name = "TIME", value_parser = duration_ms)]
    expires: Option<i64>,
}

pub fn run(args: TokenArgs) -> Result<ExitCode, CliError> {
    let TokenCommand::Create(args) = args.command;
    let token = token::make().ok_or(CliError::NoRandomness)?;
    let line = args.line(&token, now_ms())?;
    eprintln!("The token, which cannot be shown again:\n\n  {token}\n\nThe line for the token file:\n");
    println!("{}", serde_json::to_string(&line).unwrap_or_default());
    Ok(ExitCode::SUCCESS)
}

impl CreateArgs {
    fn line(&self, token: &str, now_ms: i64) -> Result<Line, CliError> {
        let fields = self.scope.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str())));
        let scope = (!self.scope.is_empty()).then(|| Scope::new(Value::Object(fields.collect()))).transpose();
        let scope = scope.map_err(|error| CliError::Scope(error.to_string()))?;
        Ok(Line {
            name: self.name.clone().unwrap_or_else(|| self.role.name().to_owned()),
            role: self.role,
            hash: TokenHash::of(token).to_string(),
            scope: scope.map(|scope| scope.fields().clone()),
            expires: self.expires.map(|in_ms| time::print(now_ms.saturating_add(in_ms))),
        })
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as owner=u_1")?;
    if key.is_empty() {
        return Err("the key is empty: write KEY=VALUE, such as owner=u_1".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}

fn duration_ms(text: &str) -> Result<i64, String> {
    let wrong = || "write a number of days, hours or minutes, such as 90d, 12h or 30m".to_owned();
    let (unit_at, unit) = text.char_indices().next_back().ok_or_else(wrong)?;
    let unit_ms = match unit {
        'd' => 86_400_000,
        'h' => 3_600_000,
        'm' => 60_000,
        _other => return Err(wrong()),
    };
    let number: i64 = text[..unit_at].parse().map_err(|_| wrong())?;
    number.checked_mul(unit_ms).filter(|ms| *ms > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::token_file::{Lookup, Tokens};

    #[test]
    fn the_printed_line_lets_the_printed_token_in() {
        let args = CreateArgs {
            role: Role::App,
            name: None,
            scope: vec![pair("owner=u_1").unwrap()],
            expires: Some(duration_ms("90d").unwrap()),
        };
        let token = token::make().unwrap();
        let line = serde_json::to_string(&args.line(&token, 0).unwrap()).unwrap();
        assert!(!line.contains(&token));
        let tokens = Tokens::parse(&line).unwrap();
        let Lookup::Valid(identity) = tokens.find(&TokenHash::of(&token), 0) else { panic!("it is let in") };
        assert_eq!((&*identity.name, identity.role), ("app", Role::App));
        assert_eq!(tokens.find(&TokenHash::of(&token), 90 * 86_400_000), Lookup::Expired);
    }

    #[test]
    fn a_wrong_time_or_scope_is_refused() {
        for wrong in ["", "d", "90", "-1d", "0h", "1w", "999999999999999999d", "1ü"] {
            assert!(duration_ms(wrong).is_err(), "{wrong}");
        }
        assert!(pair("owner").is_err() && pair("=u").is_err() && pair("owner=").is_ok());
    }
}
