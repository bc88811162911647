//! Owns: JSON Web Tokens: which keys may sign them, and the identity that their claims describe.
//! Never: where a token comes from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header, errors};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::credentials::LoginError;
use super::identity::{Identity, Proof};
use super::role::Role;
use crate::machine::json::Object;
use crate::machine::scope::Scope;

/// Shorter secrets can be guessed from one token.
const SECRET_BYTES_MIN: usize = 32;
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How JWTs are verified and read. Give `jwks_file`, or `key_file` with `algorithm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JwtConfig {
    /// A JSON Web Key Set. Read again when it changes.
    #[schemars(with = "Option<String>")]
    pub jwks_file: Option<PathBuf>,
    /// One public key in PEM, or the secret of HS256.
    #[schemars(with = "Option<String>")]
    pub key_file: Option<PathBuf>,
    /// The algorithm of `key_file`.
    pub algorithm: Option<KeyAlgorithm>,
    /// The issuer (`iss`) that a token must have.
    pub issuer: Option<String>,
    /// The audience (`aud`) that a token must have.
    pub audience: Option<String>,
    /// How far the clocks of issuer and node may differ, in seconds.
    #[schemars(range(max = 300))]
    pub leeway_secs: u64,
    /// The claim with the role.
    pub role_claim: String,
    /// The role of a token without that claim. Without it, such a token is refused.
    pub default_role: Option<Role>,
    /// The claim with the user, which is also the name of the caller.
    pub user_claim: String,
    /// The claim with the tenant.
    pub tenant_claim: Option<String>,
    /// The scope: metadata key to claim, such as `owner: sub`. A token without the claim is refused.
    pub scope: BTreeMap<String, String>,
}

impl Default for JwtConfig {
    fn default() -> JwtConfig {
        JwtConfig {
            jwks_file: None,
            key_file: None,
            algorithm: None,
            issuer: None,
            audience: None,
            leeway_secs: 30,
            role_claim: "role".to_owned(),
            default_role: None,
            user_claim: "sub".to_owned(),
            tenant_claim: None,
            scope: BTreeMap::new(),
        }
    }
}

/// The algorithms that are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum KeyAlgorithm {
    RS256,
    ES256,
    EdDSA,
    HS256,
}

impl KeyAlgorithm {
    fn of_crate(self) -> Algorithm {
        match self {
            KeyAlgorithm::RS256 => Algorithm::RS256,
            KeyAlgorithm::ES256 => Algorithm::ES256,
            KeyAlgorithm::EdDSA => Algorithm::EdDSA,
            KeyAlgorithm::HS256 => Algorithm::HS256,
        }
    }
}

/// Why the keys cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JwtError {
    File {
        path: PathBuf,
        why: String,
    },
    /// Neither `jwks_file` nor `key_file`, or both.
    Keys,
    Algorithm,
}

impl fmt::Display for JwtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JwtError::File { path, why } => write!(f, "jwt: {}: {why}", path.display()),
            JwtError::Keys => f.write_str("jwt: give either jwks_file or key_file"),
            JwtError::Algorithm => {
                f.write_str("jwt.algorithm: missing; key_file needs it: RS256, ES256, EdDSA or HS256")
            }
        }
    }
}

impl std::error::Error for JwtError {}

/// A key, and the one algorithm that it is for. A token may not choose another: a public RSA key must never be taken for
/// a secret of HS256.
struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

/// Verifies tokens.
pub struct Jwt {
    config: JwtConfig,
    keys: Vec<Key>,
}

impl Jwt {
    pub fn load(config: &JwtConfig) -> Result<Jwt, JwtError> {
        let keys = match (&config.jwks_file, &config.key_file) {
            (Some(path), None) => key_set(path)?,
            (None, Some(path)) => vec![static_key(path, config.algorithm.ok_or(JwtError::Algorithm)?)?],
            (None, None) | (Some(_), Some(_)) => return Err(JwtError::Keys),
        };
        Ok(Jwt { config: config.clone(), keys })
    }

    /// The identity that a token describes.
    pub fn check(&self, token: &str) -> Result<Arc<Identity>, LoginError> {
        let header = decode_header(token).map_err(|_| LoginError::Wrong)?;
        let key = match &header.kid {
            Some(id) => self.keys.iter().find(|key| key.id.as_ref() == Some(id) || key.id.is_none()),
            None => self.keys.first().filter(|_| self.keys.len() == 1),
        };
        let key = key.filter(|key| key.algorithm == header.alg).ok_or(LoginError::Wrong)?;
        let decoded = decode::<Object>(token, &key.key, &self.validation(key.algorithm));
        let claims = decoded.map_err(|error| match error.kind() {
            errors::ErrorKind::ExpiredSignature => LoginError::Expired,
            _other => LoginError::Wrong,
        })?;
        self.identity(&claims.claims).map(Arc::new).ok_or(LoginError::Wrong)
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.leeway = self.config.leeway_secs;
        validation.validate_nbf = true;
        let mut required = vec!["exp"];
        match &self.config.audience {
            Some(audience) => {
                validation.set_audience(&[audience]);
                required.push("aud");
            }
            None => validation.validate_aud = false,
        }
        if let Some(issuer) = &self.config.issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        validation.set_required_spec_claims(&required);
        validation
    }

    /// `None` when a claim that is needed is missing or has another type.
    fn identity(&self, claims: &Object) -> Option<Identity> {
        let text = |claim: &str| claims.get(claim).and_then(Value::as_str);
        // A person of the session model needs no role. Its own door decides what the person sees; at all others it is a
        // reader of sessions that are marked with it.
        let person = match (claims.get(&self.config.role_claim), text("channel"), text("channelUserId")) {
            (None, Some(channel), Some(id)) => Some(format!("{channel}:{id}")),
            (Some(_), _, _) | (None, _, None) | (None, None, _) => None,
        };
        let role = match (claims.get(&self.config.role_claim), &person) {
            (Some(role), _) => Role::named(role.as_str()?)?,
            (None, Some(_)) => Role::Reader,
            (None, None) => self.config.default_role?,
        };
        let user = text(&self.config.user_claim);
        let tenant = match &self.config.tenant_claim {
            Some(claim) => Some(text(claim)?),
            // The usual name. A token without it has no tenant.
            None => text("tenant_id"),
        };
        let fields = self.config.scope.iter().map(|(key, claim)| Some((key.clone(), claims.get(claim)?.clone())));
        let mut fields = fields.collect::<Option<Object>>()?;
        if let Some(person) = person {
            fields.insert("person".to_owned(), Value::from(person));
        }
        let scope = if fields.is_empty() { None } else { Some(Scope::new(Value::Object(fields)).ok()?) };
        let leeway_secs = i64::try_from(self.config.leeway_secs).unwrap_or(0);
        let end_secs = claims.get("exp")?.as_f64()? as i64;
        let until_ms = end_secs.saturating_add(leeway_secs).saturating_mul(1000);
        Some(Identity {
            scope: scope.map(Arc::new),
            tenant: tenant.map(Into::into),
            user: user.map(Into::into),
            email: text("email").map(Into::into),
            ..Identity::new(user.unwrap_or("jwt"), role, Proof::Until(until_ms))
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, JwtError> {
    let wrong = |why: String| JwtError::File { path: path.to_owned(), why };
    let bytes = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(wrong(format!("is larger than {FILE_BYTES_MAX} bytes")));
    }
    std::fs::read(path).map_err(|error| wrong(error.to_string()))
}

fn key_set(path: &Path) -> Result<Vec<Key>, JwtError> {
    let wrong = |why: String| JwtError::File { path: path.to_owned(), why };
    let set: JwkSet = serde_json::from_slice(&read(path)?).map_err(|_| wrong("is no JSON Web Key Set".to_owned()))?;
    let mut keys = Vec::new();
    for jwk in &set.keys {
        let algorithm = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => Algorithm::RS256,
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => Algorithm::ES256,
            AlgorithmParameters::OctetKeyPair(_) => Algorithm::EdDSA,
            AlgorithmParameters::OctetKey(_) => Algorithm::HS256,
            // Other curves are not accepted, and a set may hold keys for other programs.
            AlgorithmParameters::EllipticCurve(_) => continue,
        };
        let key = DecodingKey::from_jwk(jwk).map_err(|error| wrong(format!("a key cannot be used: {error}")))?;
        keys.push(Key { id: jwk.common.key_id.clone(), algorithm, key });
    }
    if keys.is_empty() {
        return Err(wrong("holds no key for RS256, ES256, EdDSA or HS256".to_owned()));
    }
    if keys.len() > 1 && keys.iter().any(|key| key.id.is_none()) {
        return Err(wrong("holds several keys, and one of them has no `kid`".to_owned()));
    }
    Ok(keys)
}

fn static_key(path: &Path, algorithm: KeyAlgorithm) -> Result<Key, JwtError> {
    let bytes = read(path)?;
    let wrong = |why: String| JwtError::File { path: path.to_owned(), why };
    let key = match algorithm {
        KeyAlgorithm::RS256 => DecodingKey::from_rsa_pem(&bytes),
        KeyAlgorithm::ES256 => DecodingKey::from_ec_pem(&bytes),
        KeyAlgorithm::EdDSA => DecodingKey::from_ed_pem(&bytes),
        KeyAlgorithm::HS256 => {
            let secret = bytes.trim_ascii();
            if secret.len() < SECRET_BYTES_MIN {
                return Err(wrong(format!("a secret of HS256 has at least {SECRET_BYTES_MIN} bytes")));
            }
            if secret.starts_with(b"-----BEGIN") {
                return Err(wrong("is a key in PEM, not a secret of HS256".to_owned()));
            }
            Ok(DecodingKey::from_secret(secret))
        }
    };
    let key = key.map_err(|_| wrong(format!("is no public key in PEM for {algorithm:?}")))?;
    Ok(Key { id: None, algorithm: algorithm.of_crate(), key })
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    use super::*;
    use crate::access::credentials::now_ms;

    const SECRET: &str = "a secret of at least thirty-two bytes";

    fn hs256(dir: &tempfile::TempDir, change: impl FnOnce(&mut JwtConfig)) -> Jwt {
        let path = dir.path().join("secret");
        std::fs::write(&path, format!("{SECRET}\n")).unwrap();
        let mut config =
            JwtConfig { key_file: Some(path), algorithm: Some(KeyAlgorithm::HS256), ..JwtConfig::default() };
        change(&mut config);
        Jwt::load(&config).unwrap()
    }

    fn sign(claims: Value) -> String {
        encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET.as_bytes())).unwrap()
    }

    fn in_secs(secs: i64) -> i64 {
        now_ms() / 1000 + secs
    }

    #[test]
    fn the_claims_describe_the_caller() {
        let dir = tempfile::tempdir().unwrap();
        let jwt = hs256(&dir, |config| {
            config.tenant_claim = Some("org".to_owned());
            config.scope = BTreeMap::from([("owner".to_owned(), "sub".to_owned())]);
            config.issuer = Some("https://login".to_owned());
            config.audience = Some("sessions".to_owned());
        });
        let claims = json!({ "sub": "u_1", "role": "reader", "org": "acme", "exp": in_secs(60), "iss": "https://login",
                             "aud": "sessions" });
        let identity = jwt.check(&sign(claims.clone())).unwrap();
        assert_eq!((&*identity.name, identity.role, identity.tenant.as_deref()), ("u_1", Role::Reader, Some("acme")));
        assert_eq!(identity.scope.as_ref().unwrap().text(), r#"{"owner":"u_1"}"#);
        for (claim, value, error) in [
            ("exp", json!(in_secs(-60)), LoginError::Expired),
            ("exp", Value::Null, LoginError::Wrong),
            ("nbf", json!(in_secs(600)), LoginError::Wrong),
            ("aud", json!("other"), LoginError::Wrong),
            ("aud", Value::Null, LoginError::Wrong),
            ("iss", json!("other"), LoginError::Wrong),
            ("role", json!("root"), LoginError::Wrong),
            ("role", json!(7), LoginError::Wrong),
            ("org", Value::Null, LoginError::Wrong),
        ] {
            let mut claims = claims.clone();
            match value.is_null() {
                true => drop(claims.as_object_mut().unwrap().remove(claim)),
                false => claims[claim] = value,
            }
            assert_eq!(jwt.check(&sign(claims)).unwrap_err(), error, "{claim}");
        }
        let mut unscoped = claims.clone();
        unscoped.as_object_mut().unwrap().remove("sub");
        assert_eq!(jwt.check(&sign(unscoped)).unwrap_err(), LoginError::Wrong, "a missing scope is not no scope");
    }

    #[test]
    fn a_token_cannot_choose_its_algorithm() {
        let dir = tempfile::tempdir().unwrap();
        let jwt = hs256(&dir, |_| {});
        let good = sign(json!({ "role": "app", "exp": in_secs(60) }));
        assert!(jwt.check(&good).is_ok());
        let mut parts = good.split('.');
        let (_, claims) = (parts.next().unwrap(), parts.next().unwrap());
        // {"alg":"none"} with and without a signature, another algorithm, garbage.
        for forged in [
            format!("eyJhbGciOiJub25lIn0.{claims}."),
            format!("eyJhbGciOiJub25lIn0.{claims}"),
            format!("{}x", good),
            good.replace('.', ""),
            "..".to_owned(),
            String::new(),
            "a.b.c".to_owned(),
        ] {
            assert_eq!(jwt.check(&forged).unwrap_err(), LoginError::Wrong, "{forged}");
        }
        let other = Header::new(Algorithm::HS384);
        let other =
            encode(&other, &json!({ "role": "app", "exp": in_secs(60) }), &EncodingKey::from_secret(SECRET.as_bytes()));
        assert_eq!(jwt.check(&other.unwrap()).unwrap_err(), LoginError::Wrong);
        // A public key in PEM is never a secret.
        let pem = dir.path().join("public.pem");
        std::fs::write(&pem, format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", "A".repeat(64)))
            .unwrap();
        let confused = JwtConfig { key_file: Some(pem), algorithm: Some(KeyAlgorithm::HS256), ..JwtConfig::default() };
        assert!(Jwt::load(&confused).err().unwrap().to_string().contains("not a secret of HS256"));
    }

    /// The public key of nobody: its private key was thrown away.
    const RSA_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAj9boHQhWXJGvLxNKBAOU
lRkCJduUC0p1PlPjC68rwwb9IoEuL8nEKBtMFH8aC6A4li01xWE/qS+f9yuP5BDM
IYh0c0lLraGvgWNfslcgaNFjqvMptI6yZpGFduBho9sBtVgAlW/dQiQtsfJmsZkh
jiCPVYpIQTC96DEoLSjz+F1YWT0SIXcp8U20mcplBk74gzJNTywiUfgdVZ9iYX9u
JTJaDtKDybq3jcyxN3RTrI+Cwfzd46BpyTQm37a8758Y2REYJsSyxr0uXyV7AgCE
34e7Q3d6YJaPiOx/jyIV4Ux8nRO8xDNeDzikmUWpRE0L9OXmY4ZEwa1HGaJ3O3ME
WwIDAQAB
-----END PUBLIC KEY-----
";

    #[test]
    fn a_public_rsa_key_is_never_a_secret_of_hs256() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("public.pem");
        std::fs::write(&path, RSA_PUBLIC).unwrap();
        let config = JwtConfig { key_file: Some(path), algorithm: Some(KeyAlgorithm::RS256), ..JwtConfig::default() };
        let jwt = Jwt::load(&config).unwrap();
        // Everybody has the public key, so everybody could sign with it.
        for secret in [RSA_PUBLIC, RSA_PUBLIC.trim()] {
            let key = EncodingKey::from_secret(secret.as_bytes());
            let forged = encode(&Header::default(), &json!({ "role": "admin", "exp": in_secs(60) }), &key).unwrap();
            assert_eq!(jwt.check(&forged).unwrap_err(), LoginError::Wrong);
        }
    }

    #[test]
    fn an_unknown_key_id_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.json");
        let k = "YSBzZWNyZXQgb2YgYXQgbGVhc3QgdGhpcnR5LXR3byBieXRlcw";
        let set = json!({ "keys": [{ "kty": "oct", "kid": "one", "k": k }, { "kty": "oct", "kid": "two", "k": k }] });
        std::fs::write(&path, set.to_string()).unwrap();
        let jwt = Jwt::load(&JwtConfig { jwks_file: Some(path), ..JwtConfig::default() }).unwrap();
        let with = |kid: Option<&str>| {
            let header = Header { kid: kid.map(str::to_owned), ..Header::default() };
            let claims = json!({ "role": "app", "exp": in_secs(60) });
            jwt.check(&encode(&header, &claims, &EncodingKey::from_secret(SECRET.as_bytes())).unwrap())
        };
        assert!(with(Some("one")).is_ok() && with(Some("two")).is_ok());
        assert_eq!(with(Some("three")).unwrap_err(), LoginError::Wrong);
        assert_eq!(with(None).unwrap_err(), LoginError::Wrong);
    }

    #[test]
    fn keys_that_cannot_be_used_are_refused_with_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.json");
        std::fs::write(&path, "{}").unwrap();
        let load = |config: JwtConfig| Jwt::load(&config).err().expect("it is refused").to_string();
        assert!(load(JwtConfig { jwks_file: Some(path.clone()), ..JwtConfig::default() }).contains("keys.json"));
        assert!(load(JwtConfig { key_file: Some(path.clone()), ..JwtConfig::default() }).contains("jwt.algorithm"));
        assert!(load(JwtConfig::default()).contains("either jwks_file or key_file"));
        let short = JwtConfig { key_file: Some(path), algorithm: Some(KeyAlgorithm::HS256), ..JwtConfig::default() };
        assert!(load(short).contains("at least 32 bytes"));
    }
}
