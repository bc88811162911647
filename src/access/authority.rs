//! Owns: making a certificate authority for one cluster, and certificates for its nodes and clients.
//! Never: where they are stored.

use std::net::IpAddr;

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use time::{Duration, OffsetDateTime};

use super::certificate::{Subject, Who};

const AUTHORITY_DAYS: i64 = 3650;
/// Clocks differ a little between machines.
const EARLIER: Duration = Duration::hours(1);

/// A certificate with its key, both in PEM.
pub struct Made {
    pub certificate: String,
    pub key: String,
}

/// Makes the authority of a cluster.
pub fn authority(cluster: &str) -> Result<Made, rcgen::Error> {
    let mut params = params(&format!("session-manager {cluster}"), AUTHORITY_DAYS);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // The clients of the authority read the cluster's name here.
    params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(format!("session-manager://{cluster}"))?)];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(Made { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Makes a certificate that the authority signs. `hosts` are the names and addresses that clients connect to.
pub fn certificate(authority: &Made, subject: &Subject, hosts: &[String], days: i64) -> Result<Made, rcgen::Error> {
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, KeyPair::from_pem(&authority.key)?)?;
    let both = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let (name, usages) = match &subject.who {
        Who::Node(id) => (format!("node {id}"), both),
        Who::AnyNode => ("any node".to_owned(), both),
        Who::Client { name, .. } => (name.clone(), vec![ExtendedKeyUsagePurpose::ClientAuth]),
    };
    let mut params = params(&name, days);
    params.extended_key_usages = usages;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(subject.to_string())?)];
    for host in hosts {
        params.subject_alt_names.push(match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(Ia5String::try_from(host.clone())?),
        });
    }
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Made { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn params(name: &str, days: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = OffsetDateTime::now_utc();
    params.not_before = now - EARLIER;
    params.not_after = now + Duration::days(days);
    params
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::*;
    use crate::access::certificate::Certificate;
    use crate::access::role::Role;

    #[test]
    fn a_made_certificate_names_its_subject() {
        let authority = authority("prod").unwrap();
        let client = Who::Client { name: "ops".to_owned(), role: Role::Admin };
        for subject in [Subject::node("prod", 2), Subject { cluster: "prod".to_owned(), who: client }] {
            let hosts = ["10.0.0.1".to_owned(), "node-2.local".to_owned()];
            let made = certificate(&authority, &subject, &hosts, 30).unwrap();
            let der = CertificateDer::from_pem_slice(made.certificate.as_bytes()).unwrap();
            let read = Certificate::read(&der).unwrap();
            assert_eq!(read.subject.as_ref(), Some(&subject));
            assert!(!read.is_authority && read.not_after_ms > crate::access::credentials::now_ms());
        }
        let der = CertificateDer::from_pem_slice(authority.certificate.as_bytes()).unwrap();
        assert!(Certificate::read(&der).unwrap().is_authority);
        let cluster_with_umlaut = Subject::node("größe", 1);
        assert!(certificate(&authority, &cluster_with_umlaut, &[], 30).is_err());
    }
}
