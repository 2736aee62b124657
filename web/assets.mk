# The page's third-party scripts: installed from package-lock.json by npm and
# copied to where the binary embeds them from. Included by the Makefile.

THIRD_PARTY := web/static/third_party/htmx.min.js web/static/third_party/hx-sse.min.js

node_modules/.package-lock.json: package.json package-lock.json
	npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

web/static/third_party/htmx.min.js: node_modules/.package-lock.json
	cp node_modules/htmx.org/dist/htmx.min.js $@

web/static/third_party/hx-sse.min.js: node_modules/.package-lock.json
	cp node_modules/htmx.org/dist/ext/hx-sse.min.js $@

.PHONY: assets
assets: $(THIRD_PARTY)
