#!/bin/sh
# provenance.sh prints how a GitHub workflow built a release, as a predicate of SLSA build provenance, version 1
# (https://slsa.dev/spec/v1.0/provenance), from the variables that the runner sets. The certificate of its signature names
# the workflow and the commit as well.
set -eu

jq --null-input '
	"\(env.GITHUB_SERVER_URL)/\(env.GITHUB_REPOSITORY)" as $repository | {
	buildDefinition: {
		buildType: "https://actions.github.io/buildtypes/workflow/v1",
		externalParameters: {workflow: {
			ref: env.GITHUB_REF,
			repository: $repository,
			path: (env.GITHUB_WORKFLOW_REF | ltrimstr(env.GITHUB_REPOSITORY + "/") | split("@")[0])
		}},
		internalParameters: {github: {event_name: env.GITHUB_EVENT_NAME, repository_id: env.GITHUB_REPOSITORY_ID}},
		resolvedDependencies: [{uri: "git+\($repository)@\(env.GITHUB_REF)", digest: {gitCommit: env.GITHUB_SHA}}]
	},
	runDetails: {
		builder: {id: "\(env.GITHUB_SERVER_URL)/\(env.GITHUB_WORKFLOW_REF)"},
		metadata: {invocationId: "\($repository)/actions/runs/\(env.GITHUB_RUN_ID)/attempts/\(env.GITHUB_RUN_ATTEMPT)"}
	}
}'
