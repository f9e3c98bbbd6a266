//! Values that must not be seen: kept behind types that print stars.

use std::{fmt, fs, path::PathBuf};

/// A file larger than this is no secret but a mistake.
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// A secret. Prints as stars; [`expose`](Self::expose) is the one way to its text.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the client that needs it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// Where a secret is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretReference {
    /// `{ env = "NAME" }`.
    Environment(String),
    /// `{ file = "/path" }`; one line end at its end does not count.
    File(PathBuf),
}

impl SecretReference {
    /// Reads a table of the file; `None` if it is no reference at all.
    ///
    /// # Errors
    /// When it is one, but not in order.
    pub(super) fn read(table: &toml::Table) -> Option<Result<Self, String>> {
        let mut members = table.iter();
        let (Some((kind, toml::Value::String(target))), None) = (members.next(), members.next())
        else {
            return None;
        };
        match kind.as_str() {
            "env" if target.is_empty() => Some(Err("names no environment variable".to_owned())),
            "env" => Some(Ok(Self::Environment(target.clone()))),
            "file" if !target.starts_with('/') => Some(Err(format!(
                "'{target}' is no absolute path: the server's working folder is not always the same"
            ))),
            "file" => Some(Ok(Self::File(PathBuf::from(target)))),
            _ => None,
        }
    }

    /// Fetches the secret.
    ///
    /// # Errors
    /// When it is not there or empty; the text names the place, never the content.
    pub(super) fn resolve(
        &self,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Secret, String> {
        let text = match self {
            Self::Environment(name) => environment(name).ok_or_else(|| {
                format!("environment variable {name} is not set (or is no UTF-8): set it for the server's process")
            })?,
            Self::File(path) => {
                let size = fs::metadata(path)
                    .map_err(|error| format!("cannot read {}: {error}", path.display()))?
                    .len();
                if size > MAX_SECRET_BYTES {
                    return Err(format!(
                        "{} has {size} bytes, more than any secret (at most {MAX_SECRET_BYTES})",
                        path.display()
                    ));
                }
                let text = fs::read_to_string(path)
                    .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                let line = text.strip_suffix('\n').unwrap_or(&text);
                line.strip_suffix('\r').unwrap_or(line).to_owned()
            }
        };
        if text.is_empty() {
            return Err(format!("{self} is empty"));
        }
        Ok(Secret(text))
    }
}

impl fmt::Display for SecretReference {
    /// As it stands in the file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment(name) => {
                write!(f, "{{ env = {} }}", toml::Value::from(name.as_str()))
            }
            Self::File(path) => {
                let path = toml::Value::from(path.display().to_string());
                write!(f, "{{ file = {path} }}")
            }
        }
    }
}

/// A database's URL, whose password never prints.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl(String);

impl PostgresUrl {
    /// Takes a URL.
    ///
    /// # Errors
    /// When it is not one of PostgreSQL's. The text does not repeat it, since it may hold a password.
    pub fn new(url: impl Into<String>) -> Result<Self, String> {
        let url = url.into();
        let rest = ["postgres://", "postgresql://"]
            .iter()
            .find_map(|scheme| url.strip_prefix(scheme));
        match rest {
            None => Err(
                "is no PostgreSQL URL: write postgres://USER:PASSWORD@HOST:PORT/DATABASE"
                    .to_owned(),
            ),
            Some("") => {
                Err("names no database: write postgres://USER:PASSWORD@HOST:PORT/DATABASE".into())
            }
            Some(_) => Ok(Self(url)),
        }
    }

    /// The URL with its password, for the client that needs it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("postgres", &self.0));
        // Up to the last '@': a password with an '@' or '/' that is not escaped must not slip through either.
        let (user, place) = match rest.rsplit_once('@') {
            Some((credentials, place)) => {
                let user = credentials
                    .split([':', '/', '?'])
                    .next()
                    .unwrap_or_default();
                let mark = if user == credentials { "" } else { ":***" };
                (format!("{user}{mark}@"), place)
            }
            None => (String::new(), rest),
        };
        let (place, query) = place.split_once('?').unwrap_or((place, ""));
        write!(f, "{scheme}://{user}{place}")?;
        let hidden: Vec<String> = query
            .split('&')
            .filter(|parameter| !parameter.is_empty())
            .map(|parameter| match parameter.split_once('=') {
                Some((name, _)) if name.to_ascii_lowercase().contains("password") => {
                    format!("{name}=***")
                }
                _ => parameter.to_owned(),
            })
            .collect();
        if hidden.is_empty() {
            return Ok(());
        }
        write!(f, "?{}", hidden.join("&"))
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_never_prints() {
        for (url, shown) in [
            ("postgres://u:hush@h:5432/d", "postgres://u:***@h:5432/d"),
            ("postgres://u@h/d", "postgres://u@h/d"),
            ("postgres://h/d", "postgres://h/d"),
            ("postgres://u:hu/s@h?x@h/d", "postgres://u:***@h/d"),
            ("postgres://h/d?password=hu@sh", "postgres://h:***@sh"),
            (
                "postgresql://h/d?user=u&password=hush&sslmode=require",
                "postgresql://h/d?user=u&password=***&sslmode=require",
            ),
        ] {
            let url = PostgresUrl::new(url).unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), format!("PostgresUrl({shown})"));
        }
        assert_eq!(format!("{:?}", Secret::new("hush")), "Secret(***)");
    }

    #[test]
    fn a_refused_url_is_not_repeated() {
        let message = PostgresUrl::new("mysql://u:hush@h/d").unwrap_err();
        assert!(!message.contains("hush"), "{message}");
    }

    #[test]
    fn a_secret_file_loses_one_line_end_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, " pass word \r\n").unwrap();
        let secret = SecretReference::File(path.clone()).resolve(&|_| None);
        assert_eq!(secret.unwrap().expose(), " pass word ");
        fs::write(&path, "\n").unwrap();
        let empty = SecretReference::File(path).resolve(&|_| None).unwrap_err();
        assert!(empty.ends_with("is empty"), "{empty}");
    }
}
