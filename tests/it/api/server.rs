//! Health, metrics and pages.

use super::Scene;

#[test]
fn the_server_tells_about_itself() {
    let scene = Scene::new("api-server");
    let client = &scene.client;
    let job = scene.run("api-server");

    client.call("livez", &[]).expect(200);
    let ready = client.call("readyz", &[]).expect(200);
    assert_eq!(ready.body["ready"], true);
    assert!(ready.body.get("checks").is_none());
    let verbose = client.call("readyz", &[]).query("verbose", "").expect(200);
    assert!(
        !verbose.body["checks"]
            .as_array()
            .expect("checks")
            .is_empty()
    );

    let metrics = client.call("metrics", &[]).expect(200);
    let page = metrics.body.as_str().expect("text");
    let state = format!("handover_job_state{{job=\"{job}\",state=\"running\"}} 1");
    assert!(page.contains(&state), "{page}");
    assert!(page.contains("handover_http_requests_total{"), "{page}");
    assert!(!page.contains("NaN"), "{page}");

    let codes = client.call("listProblems", &[]).expect(200);
    for code in codes.each("code") {
        let code = code.as_str().expect("a code");
        let page = client.call("getProblem", &[("code", code)]).expect(200);
        assert_eq!(page.body["code"], code);
    }
    client
        .call("getProblem", &[("code", "no-such-code")])
        .refused("not-found");

    let document = client.page("/openapi.json");
    assert_eq!(document.body, client.document);
    for page in ["/ui/", "/docs/"] {
        let answer = client.page(page);
        assert_eq!(answer.status, 200, "{page}");
        assert!(
            answer
                .header("content-security-policy")
                .contains("default-src 'self'")
        );
    }
    let root = client.page("/");
    assert_eq!((root.status, root.header("location")), (303, "/ui/"));
    let lost = client.page("/api/v2/jobs");
    assert_eq!(
        (lost.status, &lost.body["code"]),
        (404, &"not-found".into())
    );
    let link = lost.body["type"].as_str().expect("an address");
    let path = link
        .strip_prefix(&client.base)
        .expect("an address of this server");
    assert_eq!(client.page(path).status, 200);
}
